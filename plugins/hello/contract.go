package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"time"
)

// The records of the plugin contract, and the loop around the operator in main.go, which has the types `resource` and
// `child` with the fields that it reads. The contract: host/docs/contract.md and the JSON Schemas in wit/.

type object = map[string]any

type kind struct {
	// fields of Kind: as in wit/types.wit, by plugins/records.py
	// `v1` or `group/version`.
	APIVersion string `json:"apiVersion"`
	// The kind, such as `Deployment`.
	Kind string `json:"kind"`
	// end of fields
}

type input struct {
	Contract   string          `json:"contract"`
	Call       string          `json:"call"`
	Request    *request        `json:"request"`
	Conversion *conversion     `json:"conversion"`
	Parent     json.RawMessage `json:"parent"`
	OldParent  json.RawMessage `json:"oldParent"`
}

// conversion has resources to convert to a version, such as example.com/v1.
type conversion struct {
	APIVersion string            `json:"apiVersion"`
	Objects    []json.RawMessage `json:"objects"`
}

// convert returns a resource in another version of its kind. A plugin with several versions names them in `Versions` of its
// description, and sets this function in `init`. Numbers are of the type json.Number.
var convert = func(apiVersion string, resource object) (object, error) {
	return nil, errors.New("this plugin has one version")
}

// validate returns what the user must change in a resource. When the webhook asks whether it may replace the stored one, old is
// that one, and nil otherwise. A plugin that validates sets `Validates` in its description, and sets this function in `init`.
var validate = func(parent, old *resource) []fieldError {
	return nil
}

// setDefaults returns the spec of a resource with the defaults that need code. A plugin that has such defaults sets
// `Defaults` in its description, and sets this function in `init`.
var setDefaults = func(parent object) (object, error) {
	return nil, errors.New("this plugin has no defaults")
}

type request struct {
	Parent   resource `json:"parent"`
	Children []child  `json:"children"`
	// fields of Request without parent, children, traceparent: as in wit/types.wit, by plugins/records.py
	// The answers to the needs of the last response.
	Related []related `json:"related,omitempty"`
	// The host's clock in RFC 3339, UTC, in whole seconds that have passed.
	Now string `json:"now"`
	// Whether the parent's namespace is being deleted: nothing can be created there any more, and a `cleanup` must do without.
	NamespaceTerminating bool `json:"namespaceTerminating,omitempty"`
	// end of fields
}

// related answers a need. Numbers in the objects are of the type json.Number.
type related struct {
	// fields of Related: as in wit/types.wit, by plugins/records.py
	// The `id` of the need.
	ID string `json:"id"`
	// The objects.
	Objects []object `json:"objects,omitempty"`
	// end of fields
}

// output has one field, which says what it is.
type output struct {
	Description *description  `json:"description,omitempty"`
	Validated   *[]fieldError `json:"validated,omitempty"`
	Response    *response     `json:"response,omitempty"`
	Converted   []converted   `json:"converted,omitempty"`
	Defaulted   *object       `json:"defaulted,omitempty"`
	Failure     *failure      `json:"failure,omitempty"`
}

// The version of the contract that the records are of.
const contract = "1.0.0"

type description struct {
	Contract string          `json:"contract"`
	CRD      json.RawMessage `json:"crd"`
	// fields of Description without crd: as in wit/types.wit, by plugins/records.py
	// A DNS label, such as `echo`.
	Name string `json:"name"`
	// The plugin's own version, such as `1.4.0`.
	Version string `json:"version"`
	// The kind of the custom resource that it reconciles, or of the objects that it decorates.
	Parent kind `json:"parent"`
	// Other kinds that it can have as parents in the same way, for Controllers that decorate.
	Also []kind `json:"also,omitempty"`
	// The kinds of the children that it may ask for.
	Makes []kind `json:"makes,omitempty"`
	// The kinds that it may name in `need`.
	Reads []kind `json:"reads,omitempty"`
	// Whether `cleanup` has work to do before a parent may go.
	Finalizer bool `json:"finalizer,omitempty"`
	// The versions of the parent's kind that `convert` converts between, such as `v1beta1` and `v1`, each once, with the parent's own. Empty when there is only that one: `convert` is not called.
	Versions []string `json:"versions,omitempty"`
	// Whether `default` has work to do before a parent is stored.
	Defaults bool `json:"defaults,omitempty"`
	// Whether `validate` has something to check.
	Validates bool `json:"validates,omitempty"`
	// end of fields
}

// converted is a resource, or why it cannot be converted.
type converted struct {
	Object object  `json:"object,omitempty"`
	Error  *string `json:"error,omitempty"`
}

type response struct {
	RequeueAt *time.Time `json:"requeueAt,omitempty"`
	// fields of Response without requeueAt: as in wit/types.wit, by plugins/records.py
	// For `cleanup`, which is called again until it says so: the parent may go, and the host takes its finalizer off.
	Done bool `json:"done,omitempty"`
	// Every child that should exist, each whole: the host applies them with server-side apply and deletes what this parent owns and this list, `keep` and `generate` do not name. `cleanup` deletes nothing: children that it does not name stay.
	Children []object `json:"children,omitempty"`
	// Children that stay as they are: neither applied nor deleted in this pass. Without effect in `cleanup`.
	Keep []objectRef `json:"keep,omitempty"`
	// Secrets whose values the host makes, once. Without effect in `cleanup`.
	Generate []generatedSecret `json:"generate,omitempty"`
	// A JSON object: the parent's whole status, but for `conditions` and `observedGeneration`, which are the host's to write. Absent: the status fields stay as they are.
	Status object `json:"status,omitempty"`
	// A JSON object: the fields that the parent should have, such as one annotation. Only for a Controller that decorates, below the paths of its `fields`. What an earlier answer named and this one does not is taken back.
	Parent object `json:"parent,omitempty"`
	// Conditions of the plugin's own. One of type `Ready` replaces the host's. Those that only the host sets, such as `Synced`, `Reconciling` and `Stalled`, have no effect.
	Conditions []condition `json:"conditions,omitempty"`
	// Events on the parent.
	Events []event `json:"events,omitempty"`
	// Reconcile again after so many milliseconds, even when nothing changes.
	RequeueAfterMs uint64 `json:"requeueAfterMs,omitempty"`
	// Objects to read. When the request did not answer every one of them, the host reads them, calls again with the answers in `related` and ignores the rest of this response; from then on a change of any of them reconciles this parent.
	Needs []need `json:"needs,omitempty"`
	// end of fields
}

// fieldError is something that the user must change: where, such as spec.rules[0].host, and what.
type fieldError struct {
	// fields of FieldError: as in wit/types.wit, by plugins/records.py
	// Where, such as `spec.rules[0].host`.
	Path string `json:"path"`
	// What is wrong and what to change, such as `must be at most 10`.
	Message string `json:"message"`
	// end of fields
}

// objectRef is a child that stays as it is.
type objectRef struct {
	// fields of ObjectRef: as in wit/types.wit, by plugins/records.py
	// `v1` or `group/version`.
	APIVersion string `json:"apiVersion"`
	// The kind.
	Kind string `json:"kind"`
	// Absent: the parent's own namespace, or none for a cluster-scoped kind.
	Namespace string `json:"namespace,omitempty"`
	// The object's name.
	Name string `json:"name"`
	// end of fields
}

// generatedSecret is a Secret whose values the host makes.
type generatedSecret struct {
	// fields of GeneratedSecret: as in wit/types.wit, by plugins/records.py
	// The Secret's name; its namespace is the parent's.
	Name string `json:"name"`
	// The keys that the Secret must contain.
	Entries []generatedValue `json:"entries,omitempty"`
	// end of fields
}

type generatedValue struct {
	// fields of GeneratedValue: as in wit/types.wit, by plugins/records.py
	// The key in the Secret's data.
	Key string `json:"key"`
	// How many characters, 8 to 1024.
	Length uint32 `json:"length"`
	// The characters to draw from, each once, at least 2; absent: letters and digits.
	Alphabet string `json:"alphabet,omitempty"`
	// end of fields
}

// need asks for objects to read: one by name, or those that a label selector picks.
type need struct {
	// fields of Need: as in wit/types.wit, by plugins/records.py
	// Chosen by the plugin, unique in the response.
	ID string `json:"id"`
	// `v1` or `group/version`.
	APIVersion string `json:"apiVersion"`
	// The kind.
	Kind string `json:"kind"`
	// Absent: the parent's own namespace, or none for a cluster-scoped kind. `*`: every namespace that the controller may read.
	Namespace string `json:"namespace,omitempty"`
	// In place of `namespace`: the labels of the namespaces, as in `kubectl get -l`. Those count that the controller may read.
	NamespaceSelector string `json:"namespaceSelector,omitempty"`
	// Absent: every object that the selector picks.
	Name string `json:"name,omitempty"`
	// In place of `name`: several. Empty: every object that the selector picks.
	Names []string `json:"names,omitempty"`
	// As in `kubectl get -l`.
	LabelSelector string `json:"labelSelector,omitempty"`
	// end of fields
}

type condition struct {
	// fields of Condition: as in wit/types.wit, by plugins/records.py
	// CamelCase, such as `Ready`.
	Type string `json:"type"`
	// `True`, `False` or `Unknown`.
	Status string `json:"status"`
	// CamelCase, for machines.
	Reason string `json:"reason"`
	// A sentence, for people.
	Message string `json:"message"`
	// end of fields
}

type event struct {
	// fields of Event: as in wit/types.wit, by plugins/records.py
	// `Normal` or `Warning`.
	Type string `json:"type"`
	// CamelCase, such as `ScaledDown`.
	Reason string `json:"reason"`
	// A sentence, for people.
	Message string `json:"message"`
	// end of fields
}

type failure struct {
	Invalid *invalid `json:"invalid,omitempty"`
	Retry   *retry   `json:"retry,omitempty"`
}

// invalid is an error that the user must mend: nothing is tried again until the resource changes.
type invalid struct {
	// fields of Invalid: as in wit/types.wit, by plugins/records.py
	// CamelCase; becomes the reason of the condition and of the Warning Event. Absent: `InvalidSpec`.
	Reason string `json:"reason,omitempty"`
	// What is wrong and what to change.
	Message string `json:"message"`
	// The parent's whole status, as in `response`.
	Status object `json:"status,omitempty"`
	// Added to those that the parent has. The host's own, `Ready` among them, say that the spec is invalid.
	Conditions []condition `json:"conditions,omitempty"`
	// end of fields
}

func (i *invalid) Error() string { return i.Message }

// retry is a temporary error: the host calls the plugin again later.
type retry struct {
	// fields of Retry: as in wit/types.wit, by plugins/records.py
	// What is missing or failed.
	Message string `json:"message"`
	// Try again after so many milliseconds, in place of the host's own back-off.
	AfterMs uint64 `json:"afterMs,omitempty"`
	// The parent's whole status, as in `response`.
	Status object `json:"status,omitempty"`
	// Added to those that the parent has, but for `Ready`.
	Conditions []condition `json:"conditions,omitempty"`
	// end of fields
}

func (r *retry) Error() string { return r.Message }

func convertAll(conversion *conversion) []converted {
	all := make([]converted, len(conversion.Objects))
	for i, text := range conversion.Objects {
		resource, err := decode(text)
		if err == nil {
			resource, err = convert(conversion.APIVersion, resource)
		}
		if err != nil {
			message := err.Error()
			all[i].Error = &message
		} else {
			all[i].Object = resource
		}
	}
	return all
}

func mustBe(mismatch *json.UnmarshalTypeError) string {
	return fmt.Sprintf("must be of the type %s (it is of the type %s)", mismatch.Type, mismatch.Value)
}

func validateAll(call *input) []fieldError {
	var parent resource
	if err := json.Unmarshal(call.Parent, &parent); err != nil {
		if mismatch := (*json.UnmarshalTypeError)(nil); errors.As(err, &mismatch) {
			return []fieldError{{mismatch.Field, mustBe(mismatch)}}
		}
		return []fieldError{{"spec", err.Error()}}
	}
	var old *resource
	if call.OldParent != nil {
		// One that does not match the types is about to be replaced by one that may.
		if err := json.Unmarshal(call.OldParent, &old); err != nil {
			old = nil
		}
	}
	return append([]fieldError{}, validate(&parent, old)...)
}

// UnmarshalJSON keeps large numbers as they are.
func (r *related) UnmarshalJSON(text []byte) error {
	type plain related
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	return decoder.Decode((*plain)(r))
}

// decode keeps large numbers as they are.
func decode(text json.RawMessage) (object, error) {
	var resource object
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err := decoder.Decode(&resource)
	return resource, err
}

// answer reads one call from in and writes its answer to out.
func answer(in io.Reader, out io.Writer) error {
	defer report()
	var call input
	// The definition in the cluster may be older than the plugin. A field of another type stays empty.
	mismatch := (*json.UnmarshalTypeError)(nil)
	if err := json.NewDecoder(in).Decode(&call); err != nil && !errors.As(err, &mismatch) {
		return fmt.Errorf("standard input: %w", err)
	}
	isMissing := map[string]bool{
		"validate":  call.Parent == nil,
		"reconcile": call.Request == nil,
		"cleanup":   call.Request == nil,
		"convert":   call.Conversion == nil,
		"default":   call.Parent == nil,
	}
	if isMissing[call.Call] {
		return fmt.Errorf("standard input: %q needs a request", call.Call)
	}
	var answer output
	var err error
	switch call.Call {
	case "describe":
		answer.Description = describe()
		answer.Description.Contract = contract
	case "validate":
		errs := validateAll(&call)
		answer.Validated = &errs
	case "reconcile":
		if mismatch != nil {
			path := strings.TrimPrefix(mismatch.Field, "request.parent.")
			err = &invalid{Message: path + ": " + mustBe(mismatch)}
		} else if answer.Response, err = reconcile(call.Request); err == nil && answer.Response == nil {
			err = errors.New("reconcile returned neither a response nor an error")
		}
	case "cleanup":
		// A parent must be able to go whatever its spec is.
		if answer.Response, err = clean(call.Request); err == nil && answer.Response == nil {
			err = errors.New("clean returned neither a response nor an error")
		}
	case "convert":
		answer.Converted = convertAll(call.Conversion)
	case "default":
		var parent object
		if parent, err = decode(call.Parent); err == nil {
			var spec object
			spec, err = setDefaults(parent)
			answer.Defaulted = &spec
		}
	default:
		return fmt.Errorf("standard input: `call` is %q, none of describe, validate, reconcile, cleanup, convert, default", call.Call)
	}
	if wrong := (*invalid)(nil); errors.As(err, &wrong) {
		if wrong.Message == "" {
			return errors.New("an invalid has no Message")
		}
		answer = output{Failure: &failure{Invalid: wrong}}
	} else if later := (*retry)(nil); errors.As(err, &later) {
		if later.Message == "" {
			return errors.New("a retry has no Message")
		}
		answer = output{Failure: &failure{Retry: later}}
	} else if err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return fmt.Errorf("the answer %s: %w", placeOf(reflect.ValueOf(answer), 0), err)
	}
	_, err = out.Write(text.Bytes())
	return err
}

// placeOf returns the path of the first number that JSON does not have, such as `.Response.Status.load`.
func placeOf(value reflect.Value, depth int) string {
	found := ""
	seek := func(step string, inner reflect.Value) {
		// A map can contain itself.
		if found == "" && depth < 100 {
			if place := placeOf(inner, depth+1); place != "" {
				found = step + strings.TrimPrefix(place, "is")
			}
		}
	}
	switch value.Kind() {
	case reflect.Interface, reflect.Pointer:
		return placeOf(value.Elem(), depth)
	case reflect.Float64, reflect.Float32:
		if math.IsNaN(value.Float()) || math.IsInf(value.Float(), 0) {
			return "is"
		}
	case reflect.Map:
		for _, key := range value.MapKeys() {
			seek(fmt.Sprintf(".%v", key), value.MapIndex(key))
		}
	case reflect.Slice:
		for i := 0; i < value.Len(); i++ {
			seek(fmt.Sprintf("[%d]", i), value.Index(i))
		}
	case reflect.Struct:
		for i := 0; i < value.NumField(); i++ {
			seek("."+value.Type().Field(i).Name, value.Field(i))
		}
	}
	return found
}

// report ends a call that panics with the reason and the lines of this package: the host shows the last lines only.
func report() {
	reason := recover()
	if reason == nil {
		return
	}
	if runtime.GOOS != "wasip1" {
		panic(reason)
	}
	lines := []string{fmt.Sprintf("panic: %v", reason)}
	callers := make([]uintptr, 64)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for frame, more := frames.Next(); more && len(lines) < 8; frame, more = frames.Next() {
		if strings.HasPrefix(frame.Function, "main.") && !strings.HasSuffix(frame.File, "/contract.go") {
			lines = append(lines, fmt.Sprintf("    at %s (%s:%d)", frame.Function, filepath.Base(frame.File), frame.Line))
		}
	}
	fmt.Fprintln(os.Stderr, strings.Join(lines, "\n"))
	os.Exit(2)
}
