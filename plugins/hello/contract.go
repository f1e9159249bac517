package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The records of the plugin contract, and the loop around the operator in main.go, which has the types `resource` and
// `child` with the fields that it reads. The contract: host/docs/contract.md and the JSON Schemas in wit/.

type object = map[string]any

type kind struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

type input struct {
	Contract string   `json:"contract"`
	Call     string   `json:"call"`
	Request  *request `json:"request"`
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
	Description *description `json:"description,omitempty"`
	Response    *response    `json:"response,omitempty"`
	Cleanup     *cleanup     `json:"cleanup,omitempty"`
	Failure     *failure     `json:"failure,omitempty"`
}

// The version of the contract that the records are of.
const contract = "0.2.0"

type description struct {
	Contract  string          `json:"contract"`
	Name      string          `json:"name"`
	Version   string          `json:"version"`
	Parent    kind            `json:"parent"`
	Makes     []kind          `json:"makes"`
	Reads     []kind          `json:"reads,omitempty"`
	Finalizer bool            `json:"finalizer"`
	CRD       json.RawMessage `json:"crd"`
}

type response struct {
	Children       []object    `json:"children"`
	Keep           []objectRef `json:"keep,omitempty"`
	Generate       []generated `json:"generate,omitempty"`
	Status         object      `json:"status,omitempty"`
	Conditions     []condition `json:"conditions,omitempty"`
	Events         []event     `json:"events,omitempty"`
	RequeueAfterMs uint64      `json:"requeueAfterMs,omitempty"`
	Needs          []need      `json:"needs,omitempty"`
}

type cleanup struct {
	Done           bool        `json:"done"`
	Children       []object    `json:"children,omitempty"`
	Status         object      `json:"status,omitempty"`
	Conditions     []condition `json:"conditions,omitempty"`
	Events         []event     `json:"events,omitempty"`
	RequeueAfterMs uint64      `json:"requeueAfterMs,omitempty"`
	Needs          []need      `json:"needs,omitempty"`
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
}

func (i *invalid) Error() string { return i.Message }

// retry is a temporary error: the host calls the plugin again later.
type retry struct {
	Message string `json:"message"`
	AfterMs uint64 `json:"afterMs,omitempty"`
}

func (r *retry) Error() string { return r.Message }

// answer reads one call from in and writes its answer to out.
func answer(in io.Reader, out io.Writer) error {
	var call input
	if err := json.NewDecoder(in).Decode(&call); err != nil {
		return fmt.Errorf("standard input: %w", err)
	}
	if call.Request == nil && call.Call != "describe" {
		return fmt.Errorf("standard input: %q needs a request", call.Call)
	}
	var answer output
	var err error
	switch call.Call {
	case "describe":
		answer.Description = describe()
		answer.Description.Contract = contract
	case "reconcile":
		answer.Response, err = reconcile(call.Request)
	case "cleanup":
		answer.Cleanup, err = clean(call.Request)
	default:
		return fmt.Errorf("standard input: `call` is %q, none of describe, reconcile, cleanup", call.Call)
	}
	if wrong := (*invalid)(nil); errors.As(err, &wrong) {
		answer = output{Failure: &failure{Invalid: wrong}}
	} else if later := (*retry)(nil); errors.As(err, &later) {
		answer = output{Failure: &failure{Retry: later}}
	} else if err != nil {
		return err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(answer); err != nil {
		return err
	}
	_, err = out.Write(text.Bytes())
	return err
}
