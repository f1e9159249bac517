package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The records of the plugin contract that this plugin uses; wit/request.schema.json and
// wit/response.schema.json are the whole of it.

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
	Parent   hello        `json:"parent"`
	Children []deployment `json:"children"`
	Now      string       `json:"now"`
}

// output has one field, which says what it is.
type output struct {
	Description *description `json:"description,omitempty"`
	Response    *response    `json:"response,omitempty"`
	Cleanup     *cleanup     `json:"cleanup,omitempty"`
	Failure     *failure     `json:"failure,omitempty"`
}

type description struct {
	Name      string          `json:"name"`
	Version   string          `json:"version"`
	Parent    kind            `json:"parent"`
	Makes     []kind          `json:"makes"`
	Finalizer bool            `json:"finalizer"`
	CRD       json.RawMessage `json:"crd"`
}

type response struct {
	Children   []object    `json:"children"`
	Status     object      `json:"status,omitempty"`
	Conditions []condition `json:"conditions,omitempty"`
}

type cleanup struct {
	Done   bool    `json:"done"`
	Events []event `json:"events,omitempty"`
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
}

type invalid struct {
	Message string `json:"message"`
}

// Error makes it one of Go's errors.
func (i *invalid) Error() string { return i.Message }

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
	case "reconcile":
		answer.Response, err = reconcile(call.Request)
	case "cleanup":
		answer.Cleanup, err = clean(call.Request)
	default:
		return fmt.Errorf("standard input: `call` is %q, none of describe, reconcile, cleanup", call.Call)
	}
	if wrong := (*invalid)(nil); errors.As(err, &wrong) {
		answer = output{Failure: &failure{Invalid: wrong}}
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
