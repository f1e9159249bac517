"""RabbitUser: an application's user in RabbitMQ, with a virtual host and queues. RabbitMQ is outside of the cluster."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from operator_plugin import Cleanup, Kind, Object, Plugin, Request, Response

EXTERNAL = Kind("operator-host.dev/v1alpha1", "External")
SECRET = Kind("v1", "Secret")
LABELS = {"operator-host.dev/endpoint": "rabbitmq"}


@dataclass
class Permissions:
    configure: str = "^$"
    write: str = ".*"
    read: str = ".*"


@dataclass
class Spec:
    queues: list[str] = field(default_factory=list)
    permissions: Permissions = field(default_factory=Permissions)
    every: str = "60s"


def reconcile(request: Request) -> Response:
    name, spec = request.name, request.spec
    # Neither part has a dot, so no other RabbitUser has the same.
    user = f"{request.namespace}.{name}"

    def external(what: str, path: str, is_so: Object, body: Object, after: str = "", unset: str = "") -> Object:
        order = {"operator-host.dev/after": after} if after else {}
        return EXTERNAL.object(
            f"{name}.{what}",
            annotations=order,
            spec={
                "endpoint": "rabbitmq",
                "observe": {"path": path},
                "matches": is_so,
                "set": {"method": "PUT", "path": path, "body": body},
                "unset": {"method": "DELETE", "path": path + unset},
                "every": spec.every,
            },
        )

    vhost, login = (f"External.operator-host.dev/{name}.{what}" for what in ("vhost", "user"))
    password = {"password": f"{{{{secret {name}-rabbitmq/password}}}}", "tags": ""}
    rights = {key: getattr(spec.permissions, key) for key in ("configure", "write", "read")}
    response = Response({"user": user}).generate(f"{name}-rabbitmq", password=32)
    # The rest of the generated Secret: what applications need, and the label that lets the password be sent.
    response.child(SECRET.object(f"{name}-rabbitmq", labels=LABELS, stringData={"username": user, "vhost": user}))
    response.child(external("vhost", f"/vhosts/{user}", {"name": user}, {}))
    response.child(external("user", f"/users/{user}", {"name": user, "tags": []}, password))
    response.child(external("permissions", f"/permissions/{user}/{user}", rights, rights, f"{vhost},{login}"))
    for queue in spec.queues:
        durable = {"durable": True, "auto_delete": False}
        # A queue with messages is not deleted: it waits until they are consumed.
        response.child(external(f"queue.{queue}", f"/queues/{user}/{queue}", durable, durable, vhost, "?if-empty=true"))
    return response


Reconciler = Plugin(
    name="rabbitmq",
    version="0.1.0",
    parent=Kind("messaging.example.com/v1", "RabbitUser"),
    makes=[EXTERNAL, SECRET],
    # Read when the plugin is built.
    crd=Path(__file__).with_name("crd.json").read_text(),
    spec=Spec,
    reconcile=reconcile,
    # With a finalizer, the children are deleted in the reverse order: the queues before their virtual host.
    cleanup=lambda request: Cleanup(),
)
