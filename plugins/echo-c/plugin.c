// Echo: runs a number of pods of one image. The same operator as ../echo, in C with the bindings of the WIT world.
#include <stdlib.h>

#include "bindings/plugin.h"
#include "json.h"

typedef operator_host_plugin_types_kind_t kind_t;
typedef operator_host_plugin_types_object_ref_t object_ref_t;
typedef exports_operator_host_plugin_reconciler_description_t description_t;
typedef exports_operator_host_plugin_reconciler_request_t request_t;
typedef exports_operator_host_plugin_reconciler_response_t response_t;
typedef exports_operator_host_plugin_reconciler_failure_t failure_t;
typedef operator_host_plugin_types_json_t json_t;
typedef exports_operator_host_plugin_reconciler_list_json_t list_json_t;
typedef exports_operator_host_plugin_reconciler_list_result_json_string_t conversions_t;

// crd.json as a C string, written by the Makefile.
static const char CRD[] =
#include "build/crd.h"
    ;

// The bindings free the answer, so every part of it must be allocated.
static plugin_string_t owned(const char *string) {
  plugin_string_t copy;
  plugin_string_dup(&copy, string);
  return copy;
}

static plugin_string_t copied(json string) {
  plugin_string_t copy;
  plugin_string_dup_n(&copy, string.text, string.length);
  return copy;
}

static plugin_string_t handed_over(text built) { return (plugin_string_t){(uint8_t *)built.text, built.length}; }

// Fails with "invalid": the user must change the resource.
static bool invalid(failure_t *failure, const char *message) {
  *failure = (failure_t){.tag = OPERATOR_HOST_PLUGIN_TYPES_FAILURE_INVALID};
  failure->val.invalid.message = owned(message);
  return false;
}

void exports_operator_host_plugin_reconciler_describe(description_t *description) {
  *description = (description_t){
      .name = owned("echo"),
      .version = owned("0.1.0"),
      .parent = {owned("my-operator.dev/v1"), owned("Echo")},
      .makes = {malloc(sizeof(kind_t)), 1},
      .crd = {true, owned(CRD)},
  };
  description->makes.ptr[0] = (kind_t){owned("v1"), owned("Pod")};
}

static bool is_terminating(json object) { return json_is_there(json_at(object, "/metadata/deletionTimestamp")); }

// A finished pod, such as an evicted one, is never restarted.
static bool is_finished(json pod) {
  json phase = json_at(pod, "/status/phase");
  return json_is(phase, "Failed") || json_is(phase, "Succeeded");
}

static bool is_ready(json pod) {
  if (is_terminating(pod)) return false;
  json_each(condition, json_at(pod, "/status/conditions")) {
    if (json_is(json_at(condition, "/type"), "Ready")) return json_is(json_at(condition, "/status"), "True");
  }
  return false;
}

static bool is_pod(json object) {
  return json_is(json_at(object, "/kind"), "Pod") && json_is(json_at(object, "/apiVersion"), "v1");
}

// The pod with this name among the children, or none.
static json find(const request_t *request, json parent_name, int number) {
  text quoted = {0};
  text_add(&quoted, "\"%J-pod-%d\"", parent_name, number);
  json name = json_of(quoted.text, quoted.length);
  for (size_t i = 0; i < request->children.len; i++) {
    json child = json_of(request->children.ptr[i].ptr, request->children.ptr[i].len);
    if (is_pod(child) && json_same(json_at(child, "/metadata/name"), name)) return child;
  }
  return (json){0};
}

static void keep(response_t *response, json pod) {
  json namespace = json_inner(json_at(pod, "/metadata/namespace"));
  response->keep.ptr[response->keep.len++] = (object_ref_t){
      .api_version = owned("v1"),
      .kind = owned("Pod"),
      .namespace_ = {namespace.text != NULL, namespace.text != NULL ? copied(namespace) : (plugin_string_t){0}},
      .name = copied(json_inner(json_at(pod, "/metadata/name"))),
  };
}

bool exports_operator_host_plugin_reconciler_reconcile(request_t *request, response_t *response, failure_t *failure) {
  json parent = json_of(request->parent.ptr, request->parent.len);
  json name = json_inner(json_at(parent, "/metadata/name"));
  json image = json_at(parent, "/spec/image"), replicas = json_at(parent, "/spec/replicas");
  int64_t wanted;
  if (!json_is_there(replicas)) return invalid(failure, "spec: missing field `replicas`");
  // The definition allows 100.
  if (!json_integer(replicas, 0, 1000000, &wanted)) return invalid(failure, "spec: `replicas` must be a number of pods");
  if (!json_is_there(image)) return invalid(failure, "spec: missing field `image`");
  if (json_inner(image).text == NULL) return invalid(failure, "spec: `image` must be a string");

  *response = (response_t){0};
  // An empty list must not have a NULL pointer.
  response->children.ptr = calloc((size_t)wanted + 1, sizeof *response->children.ptr);
  response->keep.ptr = calloc((size_t)wanted + 1, sizeof *response->keep.ptr);
  for (int number = 0; number < wanted; number++) {
    json pod = find(request, name, number);
    if (json_is_there(pod) && is_finished(pod)) {
      // Leave it out: the host deletes it, and the next reconcile recreates it.
    } else if (json_is_there(pod) && is_terminating(pod)) {
      keep(response, pod);
    } else {
      text child = {0};
      text_add(&child,
               "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"%J-pod-%d\",\"labels\":{\"app\":\"%J\"}},"
               "\"spec\":{\"containers\":[{\"name\":\"echo\",\"image\":%J}]}}",
               name, number, name, image);
      response->children.ptr[response->children.len++] = handed_over(child);
    }
  }

  int existing = 0, ready = 0;
  for (size_t i = 0; i < request->children.len; i++) {
    json child = json_of(request->children.ptr[i].ptr, request->children.ptr[i].len);
    if (!is_pod(child)) continue;
    existing++;
    if (is_ready(child)) ready++;
  }
  text status = {0};
  text_add(&status, "{\"currentReplicas\":%d,\"isReady\":%s}", existing,
           existing == wanted && ready == wanted ? "true" : "false");
  response->status.is_some = true;
  response->status.val = handed_over(status);
  return true;
}

// Never called: `describe` asks for no finalizer.
bool exports_operator_host_plugin_reconciler_cleanup(request_t *request, response_t *response, failure_t *failure) {
  (void)request;
  (void)failure;
  *response = (response_t){.done = true};
  return true;
}

// Never called: `describe` names one version only.
void exports_operator_host_plugin_reconciler_convert(plugin_string_t *api_version, list_json_t *objects,
                                                     conversions_t *conversions) {
  (void)api_version;
  (void)objects;
  *conversions = (conversions_t){0};
}

// Never called: `describe` says that there are no defaults.
bool exports_operator_host_plugin_reconciler_default(json_t *parent, json_t *spec, failure_t *failure) {
  (void)failure;
  *spec = *parent;
  return true;
}

// Never called: `describe` says that there is nothing to validate.
void exports_operator_host_plugin_reconciler_validate(json_t *parent, json_t *old_parent,
                                                      exports_operator_host_plugin_reconciler_list_field_error_t *errors) {
  (void)parent;
  (void)old_parent;
  *errors = (exports_operator_host_plugin_reconciler_list_field_error_t){0};
}
