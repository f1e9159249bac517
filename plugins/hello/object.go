package main

import (
	"encoding/json"
	"strings"
)

// Helpers for children that are read as objects: `type child = object` in main.go.

// get returns the value at a path such as "status", "phase"; nil if there is none.
func get(o object, path ...string) any {
	var value any = o
	for _, name := range path {
		fields, _ := value.(object)
		value = fields[name]
	}
	return value
}

// text returns the text at a path, or "".
func text(o object, path ...string) string {
	found, _ := get(o, path...).(string)
	return found
}

// number returns the integer at a path, or 0.
func number(o object, path ...string) int64 {
	switch found := get(o, path...).(type) {
	case float64:
		return int64(found)
	case json.Number:
		whole, _ := found.Int64()
		return whole
	}
	return 0
}

// numberOr returns the integer at a path, or another one if there is none.
func numberOr(other int64, o object, path ...string) int64 {
	if get(o, path...) == nil {
		return other
	}
	return number(o, path...)
}

func isKind(o object, k kind) bool {
	return o["apiVersion"] == k.APIVersion && o["kind"] == k.Kind
}

// find returns the child of a kind and name; nil if there is none.
func find(children []object, k kind, name string) object {
	for _, o := range children {
		if isKind(o, k) && text(o, "metadata", "name") == name {
			return o
		}
	}
	return nil
}

// isTerminating reports whether an object is being deleted.
func isTerminating(o object) bool { return get(o, "metadata", "deletionTimestamp") != nil }

// conditionStatus returns the status of a condition: True, False, Unknown, or "" if there is none.
func conditionStatus(o object, type_ string) string {
	conditions, _ := get(o, "status", "conditions").([]any)
	for _, it := range conditions {
		if it, _ := it.(object); it["type"] == type_ {
			return text(it, "status")
		}
	}
	return ""
}

// isFinishedPod reports whether a Pod has ended permanently, such as an evicted one. Leave it out of an answer, and the host
// deletes it; the next call can want another one.
func isFinishedPod(o object) bool {
	phase := text(o, "status", "phase")
	return phase == "Failed" || phase == "Succeeded"
}

// addChild adds a child that should exist. While an earlier one of its name is being deleted, that one is kept: the host calls
// again when it is gone.
func (r *response) addChild(children []object, wanted object) {
	k := kind{APIVersion: text(wanted, "apiVersion"), Kind: text(wanted, "kind")}
	name := text(wanted, "metadata", "name")
	if existing := find(children, k, name); existing != nil && isTerminating(existing) {
		r.Keep = append(r.Keep, objectRef{APIVersion: k.APIVersion, Kind: k.Kind, Name: name,
			Namespace: text(existing, "metadata", "namespace")})
		return
	}
	r.Children = append(r.Children, wanted)
}

// after makes a child wait until others, which are children of the same answer, are ready.
func after(wanted object, others ...object) object {
	names := make([]string, len(others))
	for i, other := range others {
		group, _, hasGroup := strings.Cut(text(other, "apiVersion"), "/")
		names[i] = text(other, "kind")
		if hasGroup {
			names[i] += "." + group
		}
		names[i] += "/" + text(other, "metadata", "name")
	}
	metadata, _ := wanted["metadata"].(object)
	annotations, _ := metadata["annotations"].(object)
	if annotations == nil {
		annotations = object{}
		metadata["annotations"] = annotations
	}
	annotations["operator-host.dev/after"] = strings.Join(names, ", ")
	return wanted
}

// isReady reports whether an object is ready according to its own controller or kubelet, by the rules of kstatus. The host
// derives the condition Ready of a parent by the same rules.
func isReady(o object) bool {
	generation := number(o, "metadata", "generation")
	if isTerminating(o) || numberOr(generation, o, "status", "observedGeneration") < generation {
		return false
	}
	count := func(field string) int64 { return number(o, "status", field) }
	wanted := numberOr(1, o, "spec", "replicas")
	onDelete := text(o, "spec", "updateStrategy", "type") == "OnDelete"
	group, _, hasGroup := strings.Cut(text(o, "apiVersion"), "/")
	if !hasGroup {
		group = ""
	}
	switch strings.TrimPrefix(group+"/"+text(o, "kind"), "/") {
	case "apps/Deployment":
		updated := count("updatedReplicas")
		return conditionStatus(o, "Progressing") != "False" && updated >= wanted && count("replicas") <= updated &&
			count("availableReplicas") >= wanted && count("readyReplicas") >= wanted
	case "apps/StatefulSet":
		partition := number(o, "spec", "updateStrategy", "rollingUpdate", "partition")
		isUpdated := onDelete || count("updatedReplicas") >= wanted-partition ||
			text(o, "status", "updateRevision") == text(o, "status", "currentRevision")
		return count("readyReplicas") >= wanted && count("replicas") <= wanted && isUpdated
	case "apps/DaemonSet":
		nodes := count("desiredNumberScheduled")
		return get(o, "status", "desiredNumberScheduled") != nil && count("currentNumberScheduled") >= nodes &&
			(onDelete || count("updatedNumberScheduled") >= nodes) && count("numberAvailable") >= nodes &&
			count("numberReady") >= nodes
	case "apps/ReplicaSet", "ReplicationController":
		return conditionStatus(o, "ReplicaFailure") != "True" && count("readyReplicas") >= wanted &&
			count("availableReplicas") >= wanted
	case "autoscaling/HorizontalPodAutoscaler":
		return conditionStatus(o, "AbleToScale") != "False"
	case "batch/Job":
		hasStarted := get(o, "spec", "suspend") == true || text(o, "status", "startTime") != "" ||
			conditionStatus(o, "Complete") == "True"
		return hasStarted && conditionStatus(o, "Failed") != "True"
	case "apiextensions.k8s.io/CustomResourceDefinition":
		return conditionStatus(o, "Established") == "True"
	case "Pod":
		switch text(o, "status", "phase") {
		case "Succeeded":
			policy := text(o, "spec", "restartPolicy")
			return policy == "OnFailure" || policy == "Never"
		case "Failed":
			return false
		}
		return conditionStatus(o, "Ready") == "True"
	case "PersistentVolumeClaim":
		return text(o, "status", "phase") == "Bound"
	case "Service":
		ingress, _ := get(o, "status", "loadBalancer", "ingress").([]any)
		return text(o, "spec", "type") != "LoadBalancer" || len(ingress) > 0
	}
	conditions, _ := get(o, "status", "conditions").([]any)
	for _, it := range conditions {
		// Where the status has conditions only, each says for itself which spec it is about.
		if it, _ := it.(object); it["type"] == "Ready" {
			if it["status"] != "True" || numberOr(generation, it, "observedGeneration") < generation {
				return false
			}
			break
		}
	}
	return conditionStatus(o, "Reconciling") != "True" && conditionStatus(o, "Stalled") != "True"
}
