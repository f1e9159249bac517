"""Echo: runs a number of pods of one image. The same operator as ../echo, in Python."""

from dataclasses import dataclass
from pathlib import Path

from operator_plugin import Kind, Plugin, Request, Response, is_finished_pod, is_ready_pod

POD = Kind("v1", "Pod")


@dataclass
class Spec:
    replicas: int
    image: str


def reconcile(request: Request) -> Response:
    name, spec = request.name, request.spec
    pods = request.children_of(POD)
    is_ready = len(pods) == spec.replicas and all(map(is_ready_pod, pods))
    response = Response({"currentReplicas": len(pods), "isReady": is_ready})
    for i in range(spec.replicas):
        pod = f"{name}-pod-{i}"
        existing = request.child(POD, pod)
        # Leave out a pod that has ended (it was evicted): the host deletes it, and the next reconcile recreates it.
        if existing and is_finished_pod(existing):
            continue
        containers = [{"name": "echo", "image": spec.image}]
        response.child(POD.object(pod, labels={"app": name}, spec={"containers": containers}))
    return response


Reconciler = Plugin(
    name="echo",
    version="0.1.0",
    parent=Kind("my-operator.dev/v1", "Echo"),
    makes=[POD],
    # Read when the plugin is built.
    crd=Path(__file__).with_name("crd.json").read_text(),
    spec=Spec,
    reconcile=reconcile,
)
