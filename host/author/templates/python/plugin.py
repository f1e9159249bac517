"""The @KIND@ operator: runs an image in a Deployment with a number of replicas."""

from dataclasses import dataclass
from pathlib import Path

from operator_plugin import Kind, Plugin, Request, Response

DEPLOYMENT = Kind("apps/v1", "Deployment")


@dataclass
class Spec:
    image: str
    replicas: int = 1


def reconcile(request: Request) -> Response:
    name, spec = request.name, request.spec
    labels = {"app.kubernetes.io/name": name}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": spec.image}]}}
    deployment = {"replicas": spec.replicas, "selector": {"matchLabels": labels}, "template": pod}

    existing = request.child(DEPLOYMENT, name) or {}
    ready = existing.get("status", {}).get("readyReplicas", 0)
    is_ready = ready == spec.replicas
    reason = "ReplicasReady" if is_ready else "ReplicasNotReady"
    return (
        Response({"readyReplicas": ready})
        .child(DEPLOYMENT.object(name, labels=labels, spec=deployment))
        .condition("Ready", is_ready, reason, f"{ready}/{spec.replicas} replicas ready")
    )


Reconciler = Plugin(
    name="@NAME@",
    version="0.1.0",
    parent=Kind("@GROUP@/@VERSION@", "@KIND@"),
    makes=[DEPLOYMENT],
    # Read when the plugin is built.
    crd=Path(__file__).with_name("crd.json").read_text(),
    spec=Spec,
    reconcile=reconcile,
)
