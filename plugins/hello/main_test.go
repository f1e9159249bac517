package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
)

const helloParent = `{"metadata":{"name":"h","namespace":"n"},"spec":{"replicas":%}}`

func ask(t *testing.T, call, replicas, children string) map[string]any {
	t.Helper()
	parent := strings.Replace(helloParent, "%", replicas, 1)
	in := `{"contract":"1.0.0","call":"` + call + `","request":{"parent":` + parent + `,"children":` + children +
		`,"related":[],"now":"2026-01-02T03:04:05Z"}}`
	var out strings.Builder
	if err := answer(strings.NewReader(in), &out); err != nil {
		t.Fatal(err)
	}
	var document map[string]any
	if err := json.Unmarshal([]byte(out.String()), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

// at follows field names, and 0 for the first item of a list.
func at(document any, path ...string) any {
	for _, name := range path {
		switch inner := document.(type) {
		case map[string]any:
			document = inner[name]
		case []any:
			document = inner[0]
		default:
			return nil
		}
	}
	return document
}

func TestReconcile(t *testing.T) {
	cases := []struct {
		name, replicas, children string
		path                     []string
		want                     any
	}{
		{"the deployment has the replicas", "3", `[]`, []string{"response", "children", "0", "spec", "replicas"}, 3.0},
		{"none is a number too", "0", `[]`, []string{"response", "children", "0", "spec", "replicas"}, 0.0},
		{"the limit is allowed", "20", `[]`, []string{"response", "children", "0", "spec", "replicas"}, 20.0},
		{"over the limit is invalid", "21", `[]`, []string{"failure", "invalid", "message"}, "Invalid Hello spec: replicas: greater than 20"},
		{"below nothing is invalid", "-1", `[]`, []string{"failure", "invalid", "message"}, "Invalid Hello spec: replicas: less than 0"},
		{"nothing observed is not ready", "1", `[]`, []string{"response", "conditions", "0", "status"}, "False"},
		{"all ready is ready", "2", `[{"metadata":{"name":"h"},"status":{"readyReplicas":2}}]`, []string{"response", "conditions", "0", "status"}, "True"},
		{"another's replicas do not count", "2", `[{"metadata":{"name":"x"},"status":{"readyReplicas":2}}]`, []string{"response", "status", "readyReplicas"}, 0.0},
	}
	for _, c := range cases {
		if got := at(ask(t, "reconcile", c.replicas, c.children), c.path...); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestCleanupIsDoneAndPublishesAnEvent(t *testing.T) {
	document := ask(t, "cleanup", "1", `[]`)
	if at(document, "response", "done") != true || at(document, "response", "events", "0", "reason") != "Deleted" {
		t.Errorf("got %v", document)
	}
}

func TestNumbersOfRelatedObjectsStayAsTheyAre(t *testing.T) {
	var got related
	if err := json.Unmarshal([]byte(`{"id":"a","objects":[{"number":9007199254740993}]}`), &got); err != nil {
		t.Fatal(err)
	}
	if got.ID != "a" || fmt.Sprint(got.Objects[0]["number"]) != "9007199254740993" {
		t.Errorf("got %v", got)
	}
}

func TestDescribeNamesTheKindAndItsDefinition(t *testing.T) {
	document := ask(t, "describe", "0", `[]`)
	if at(document, "description", "parent", "kind") != "Hello" || at(document, "description", "crd", "kind") != "CustomResourceDefinition" {
		t.Errorf("got %v", document)
	}
}

func TestWhatIsNotOfTheContractIsAnError(t *testing.T) {
	for in, want := range map[string]string{
		``:                              "standard input",
		`{"call":"dance"}`:              "none of describe",
		`{"call":"dance","request":{}}`: "none of describe, validate, reconcile, cleanup",
		`{"call":"reconcile"}`:          "needs a request",
	} {
		err := answer(strings.NewReader(in), &strings.Builder{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", in, err, want)
		}
	}
}

func TestConvertAndDefault(t *testing.T) {
	before, beforeDefaults, beforeValidate := convert, setDefaults, validate
	defer func() { convert, setDefaults, validate = before, beforeDefaults, beforeValidate }()
	validate = func(parent, old *resource) []fieldError {
		if old == nil {
			return nil
		}
		return []fieldError{{"metadata.name", "was " + old.Metadata.Name}}
	}
	convert = func(apiVersion string, resource object) (object, error) {
		if resource["kind"] == "Wrong" {
			return nil, errors.New("it is wrong")
		}
		resource["apiVersion"] = apiVersion
		return resource, nil
	}
	setDefaults = func(parent object) (object, error) {
		return object{"size": 3}, nil
	}
	for _, test := range []struct{ input, expected string }{
		{
			`{"contract":"1.0.0","call":"convert","conversion":{"apiVersion":"a.dev/v2","objects":[` +
				`{"apiVersion":"a.dev/v1","number":9007199254740993},{"kind":"Wrong"}]}}`,
			`{"converted":[{"object":{"apiVersion":"a.dev/v2","number":9007199254740993}},{"error":"it is wrong"}]}`,
		},
		{
			`{"contract":"1.0.0","call":"default","parent":{"spec":{}}}`,
			`{"defaulted":{"size":3}}`,
		},
		{
			`{"contract":"1.0.0","call":"validate","parent":{"metadata":{"name":"b"}},"oldParent":{"metadata":{"name":"a"}}}`,
			`{"validated":[{"path":"metadata.name","message":"was a"}]}`,
		},
		{
			`{"contract":"1.0.0","call":"validate","parent":{"metadata":{"name":"b"}}}`,
			`{"validated":[]}`,
		},
	} {
		var out strings.Builder
		if err := answer(strings.NewReader(test.input), &out); err != nil {
			t.Fatal(err)
		}
		if strings.TrimSpace(out.String()) != test.expected {
			t.Errorf("%s: %s", test.input, out.String())
		}
	}
	if err := answer(strings.NewReader(`{"call":"convert"}`), new(strings.Builder)); err == nil {
		t.Error("a call without objects is an error")
	}
}

func TestReadinessIsJudgedAsTheHostJudgesIt(t *testing.T) {
	file, err := os.ReadFile("../../tests/fixtures/readiness.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Unready *string `json:"unready"`
		Object  object  `json:"object"`
	}
	if err := json.Unmarshal(file, &cases); err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		if isReady(c.Object) != (c.Unready == nil) {
			t.Errorf("not %v: %v", c.Unready == nil, c.Object)
		}
	}
}

func TestAChildThatIsBeingDeletedIsKeptAndAnotherOneWaits(t *testing.T) {
	pod := func(name string) object {
		return object{"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": name}}
	}
	going := pod("a")
	going["metadata"].(object)["deletionTimestamp"] = "2026-01-01T00:00:00Z"
	var answer response
	deployment := object{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "d"}}
	answer.addChild([]object{going}, pod("a"))
	answer.addChild([]object{going}, after(pod("b"), deployment, pod("a")))
	if len(answer.Keep) != 1 || answer.Keep[0].Name != "a" || len(answer.Children) != 1 {
		t.Errorf("got %v", answer)
	}
	if got := text(answer.Children[0], "metadata", "annotations", "operator-host.dev/after"); got != "Deployment.apps/d, Pod/a" {
		t.Errorf("got %q", got)
	}
}
