// The @KIND@ operator: runs an image in a Deployment with a number of replicas.
#include <stdlib.h>

#include "bindings/plugin.h"
#include "json.h"

typedef operator_host_plugin_types_kind_t kind_t;
typedef operator_host_plugin_types_condition_t condition_t;
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

static plugin_string_t handed_over(text built) { return (plugin_string_t){(uint8_t *)built.text, built.length}; }

// Fails with "invalid": the user must change the resource.
static bool invalid(failure_t *failure, const char *message) {
  *failure = (failure_t){.tag = OPERATOR_HOST_PLUGIN_TYPES_FAILURE_INVALID};
  failure->val.invalid.message = owned(message);
  return false;
}

void exports_operator_host_plugin_reconciler_describe(description_t *description) {
  *description = (description_t){
      .name = owned("@NAME@"),
      .version = owned("0.1.0"),
      .parent = {owned("@GROUP@/@VERSION@"), owned("@KIND@")},
      .makes = {malloc(sizeof(kind_t)), 1},
      .crd = {true, owned(CRD)},
  };
  description->makes.ptr[0] = (kind_t){owned("apps/v1"), owned("Deployment")};
}

// How many replicas of the Deployment with this name are ready.
static int ready_replicas(const request_t *request, json name) {
  for (size_t i = 0; i < request->children.len; i++) {
    json child = json_of(request->children.ptr[i].ptr, request->children.ptr[i].len);
    int64_t ready;
    if (json_is(json_at(child, "/kind"), "Deployment") && json_same(json_at(child, "/metadata/name"), name) &&
        json_integer(json_at(child, "/status/readyReplicas"), 0, INT32_MAX, &ready)) {
      return (int)ready;
    }
  }
  return 0;
}

bool exports_operator_host_plugin_reconciler_reconcile(request_t *request, response_t *response, failure_t *failure) {
  json parent = json_of(request->parent.ptr, request->parent.len);
  json name = json_at(parent, "/metadata/name"), image = json_at(parent, "/spec/image");
  json replicas = json_at(parent, "/spec/replicas");
  if (!json_is_there(image)) return invalid(failure, "spec: missing field `image`");
  int64_t wanted = 1;
  if (json_is_there(replicas) && !json_integer(replicas, 0, 100, &wanted)) {
    return invalid(failure, "spec: `replicas` must be a number from 0 to 100");
  }

  text labels = {0}, deployment = {0}, status = {0}, message = {0};
  text_add(&labels, "{\"app.kubernetes.io/name\":%J}", name);
  json label = json_of(labels.text, labels.length);
  text_add(&deployment,
           "{\"apiVersion\":\"apps/v1\",\"kind\":\"Deployment\",\"metadata\":{\"name\":%J,\"labels\":%J},"
           "\"spec\":{\"replicas\":%d,\"selector\":{\"matchLabels\":%J},\"template\":{\"metadata\":{\"labels\":%J},"
           "\"spec\":{\"containers\":[{\"name\":\"main\",\"image\":%J}]}}}}",
           name, label, (int)wanted, label, label, image);

  int ready = ready_replicas(request, name);
  bool is_ready = ready == wanted;
  text_add(&status, "{\"readyReplicas\":%d}", ready);
  text_add(&message, "%d/%d replicas ready", ready, (int)wanted);

  *response = (response_t){
      .children = {malloc(sizeof *response->children.ptr), 1},
      .status = {true, handed_over(status)},
      .conditions = {malloc(sizeof(condition_t)), 1},
  };
  response->children.ptr[0] = handed_over(deployment);
  response->conditions.ptr[0] = (condition_t){
      .type = owned("Ready"),
      .status = is_ready ? OPERATOR_HOST_PLUGIN_TYPES_CONDITION_STATUS_TRUE
                         : OPERATOR_HOST_PLUGIN_TYPES_CONDITION_STATUS_FALSE,
      .reason = owned(is_ready ? "ReplicasReady" : "ReplicasNotReady"),
      .message = handed_over(message),
  };
  return true;
}

// Called while a parent is being deleted, if the description sets `finalizer`.
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
