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
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
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
	Parent   resource  `json:"parent"`
	Children []child   `json:"children"`
	Related  []related `json:"related"`
	Now      string    `json:"now"`
	// The namespace is being deleted: nothing can be created there any more.
	NamespaceTerminating bool `json:"namespaceTerminating"`
}

// related answers a need.
type related struct {
	ID      string   `json:"id"`
	Objects []object `json:"objects"`
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
	Contract  string          `json:"contract"`
	Name      string          `json:"name"`
	Version   string          `json:"version"`
	Parent    kind            `json:"parent"`
	Makes     []kind          `json:"makes"`
	Reads     []kind          `json:"reads,omitempty"`
	Finalizer bool            `json:"finalizer"`
	CRD       json.RawMessage `json:"crd"`
	Versions  []string        `json:"versions,omitempty"`
	Defaults  bool            `json:"defaults,omitempty"`
	Validates bool            `json:"validates,omitempty"`
}

// converted is a resource, or why it cannot be converted.
type converted struct {
	Object object  `json:"object,omitempty"`
	Error  *string `json:"error,omitempty"`
}

type response struct {
	Done           bool        `json:"done,omitempty"`
	Children       []object    `json:"children,omitempty"`
	Keep           []objectRef `json:"keep,omitempty"`
	Generate       []generated `json:"generate,omitempty"`
	Status         object      `json:"status,omitempty"`
	Conditions     []condition `json:"conditions,omitempty"`
	Events         []event     `json:"events,omitempty"`
	RequeueAfterMs uint64      `json:"requeueAfterMs,omitempty"`
	RequeueAt      *time.Time  `json:"requeueAt,omitempty"`
	Needs          []need      `json:"needs,omitempty"`
}

// fieldError is something that the user must change: where, such as spec.rules[0].host, and what.
type fieldError struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// objectRef is a child that stays as it is.
type objectRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// generated is a Secret whose values the host makes.
type generated struct {
	Name    string           `json:"name"`
	Entries []generatedValue `json:"entries"`
}

type generatedValue struct {
	Key      string `json:"key"`
	Length   uint32 `json:"length"`
	Alphabet string `json:"alphabet,omitempty"`
}

// need asks for objects to read: one by name, or those that a label selector picks.
type need struct {
	ID            string `json:"id"`
	APIVersion    string `json:"apiVersion"`
	Kind          string `json:"kind"`
	Namespace     string `json:"namespace,omitempty"`
	Name          string `json:"name,omitempty"`
	LabelSelector string `json:"labelSelector,omitempty"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type event struct {
	Type    string `json:"type"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type failure struct {
	Invalid *invalid `json:"invalid,omitempty"`
	Retry   *retry   `json:"retry,omitempty"`
}

// invalid is an error that the user must mend: nothing is tried again until the resource changes.
type invalid struct {
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	shown
}

func (i *invalid) Error() string { return i.Message }

// retry is a temporary error: the host calls the plugin again later.
type retry struct {
	Message string `json:"message"`
	AfterMs uint64 `json:"afterMs,omitempty"`
	shown
}

// shown is what the resource shows with a failure, beside the conditions of the host.
type shown struct {
	Status     object      `json:"status,omitempty"`
	Conditions []condition `json:"conditions,omitempty"`
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
