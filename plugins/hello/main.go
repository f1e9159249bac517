// Hello: a Deployment of a web server that says hello. A plugin as a plain WASI command, with Go's standard
// library only: one JSON document on standard input, one on standard output.
package main

import (
	_ "embed"
	"fmt"
	"os"
)

const (
	image       = "nginxdemos/hello:0.3-plain-text"
	maxReplicas = 20
)

//go:embed crd.json
var crd []byte

var parent = kind{APIVersion: "fraim.co.jp/v1", Kind: "Hello"}

// resource is the custom resource, a Hello.
type resource struct {
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		Replicas int64 `json:"replicas"`
	} `json:"spec"`
}

// child is what is read of the Deployment.
type child struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Status struct {
		ReadyReplicas int64 `json:"readyReplicas"`
	} `json:"status"`
}

func main() {
	if err := answer(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func describe() *description {
	return &description{
		Name:      "hello",
		Version:   "0.1.0",
		Parent:    parent,
		Makes:     []kind{{APIVersion: "apps/v1", Kind: "Deployment"}},
		Finalizer: true,
		CRD:       crd,
	}
}

func reconcile(request *request) (*response, error) {
	name, wanted := request.Parent.Metadata.Name, request.Parent.Spec.Replicas
	// The CRD has the same rule. Check it here too, for clusters whose CRD lacks it.
	if wanted > maxReplicas {
		return nil, &invalid{Message: fmt.Sprintf("Invalid Hello spec: replicas: greater than %d", maxReplicas)}
	}
	if wanted < 0 {
		return nil, &invalid{Message: "Invalid Hello spec: replicas: less than 0"}
	}
	var ready int64
	for _, child := range request.Children {
		if child.Metadata.Name == name {
			ready = child.Status.ReadyReplicas
		}
	}
	message := fmt.Sprintf("%d/%d replicas ready", ready, wanted)
	readiness := condition{Type: "Ready", Status: "False", Reason: "ReplicasNotReady", Message: message}
	if ready == wanted {
		readiness.Status, readiness.Reason = "True", "ReplicasReady"
	}
	return &response{
		Children:   []object{workload(name, wanted)},
		Status:     object{"readyReplicas": ready},
		Conditions: []condition{readiness},
	}, nil
}

// clean runs while a Hello is being deleted. The garbage collector deletes the Deployment, which the Hello owns.
func clean(request *request) (*response, error) {
	message := fmt.Sprintf("Deleting Hello %s and its Deployment", request.Parent.Metadata.Name)
	return &response{Done: true, Events: []event{{Type: "Normal", Reason: "Deleted", Message: message}}}, nil
}

func workload(name string, replicas int64) object {
	selector := object{"app.kubernetes.io/name": name}
	labels := object{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "hello-operator"}
	return object{
		"apiVersion": "apps/v1",
		"kind":       "Deployment",
		"metadata":   object{"name": name, "labels": labels},
		"spec": object{
			"replicas": replicas,
			"selector": object{"matchLabels": selector},
			"template": object{
				"metadata": object{"labels": labels},
				"spec": object{
					"containers": []object{{
						"name":  "hello",
						"image": image,
						"ports": []object{{"name": "http", "containerPort": 80, "protocol": "TCP"}},
					}},
				},
			},
		},
	}
}
