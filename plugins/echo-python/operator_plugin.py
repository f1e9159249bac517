"""The SDK of plugins in Python: it hides the records of the plugin contract, in which objects are text.

A plugin is one instance of `Plugin`, by the name of `Reconciler`, as componentize-py looks it up.
"""

import dataclasses
import json
import math
import traceback
import types
import typing
from typing import Any, Callable, NamedTuple, Optional

from componentize_py_types import Err
from wit_world.imports import logging
from wit_world.imports import types as wit

Object = dict[str, Any]


class Kind(NamedTuple):
    """A kind as written in a manifest."""

    api_version: str
    kind: str

    def matches(self, object: Object) -> bool:
        return (object["apiVersion"], object["kind"]) == self

    def object(self, name: str, **fields: Any) -> Object:
        """Builds an object of this kind. `labels` and `annotations` belong to its metadata."""
        metadata = {"name": name}
        metadata |= {key: fields.pop(key) for key in ("labels", "annotations", "namespace") if key in fields}
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **fields}

    def reference(self, name: str, namespace: Optional[str] = None) -> wit.ObjectRef:
        """Refers to an object, in the parent's namespace unless another one is given."""
        return wit.ObjectRef(self.api_version, self.kind, namespace, name)


class Failure(Exception):
    """Why there is no answer."""


class Invalid(Failure):
    """The user must change the resource. Nothing is retried until it changes."""

    def __init__(self, message: str, reason: Optional[str] = None):
        super().__init__(message)
        self.record = wit.Failure_Invalid(wit.Invalid(reason, message))


class Retry(Failure):
    """Something does not exist yet, or failed temporarily. The host retries, after this time or its own back-off."""

    def __init__(self, message: str, after_seconds: Optional[float] = None):
        super().__init__(message)
        self.record = wit.Failure_Retry(wit.Retry(message, milliseconds(after_seconds)))


class Log:
    """Writes lines to the host's log, where they get the parent's reference and the plugin's digest."""

    def debug(self, message: str) -> None:
        logging.log(logging.Level.DEBUG, message)

    def info(self, message: str) -> None:
        logging.log(logging.Level.INFO, message)

    def warning(self, message: str) -> None:
        logging.log(logging.Level.WARN, message)

    def error(self, message: str) -> None:
        logging.log(logging.Level.ERROR, message)


log = Log()


def is_terminating(object: Object) -> bool:
    """Reports whether an object is being deleted."""
    return object["metadata"].get("deletionTimestamp") is not None


def condition_of(object: Object, type: str) -> Optional[str]:
    """Returns the status of a condition of an object: `True`, `False` or `Unknown`; None when it is missing."""
    for condition in object.get("status", {}).get("conditions", []):
        if condition["type"] == type:
            return condition["status"]
    return None


def is_finished_pod(pod: Object) -> bool:
    """Reports whether a Pod has ended permanently, such as an evicted one."""
    return pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def is_ready_pod(pod: Object) -> bool:
    """Reports whether a Pod is ready."""
    phase = pod.get("status", {}).get("phase")
    if is_terminating(pod) or phase == "Failed":
        return False
    if phase == "Succeeded":
        return pod["spec"].get("restartPolicy") in ("OnFailure", "Never")
    return condition_of(pod, "Ready") == "True"


class Request:
    """The input of one call."""

    def __init__(self, request: wit.Request, spec: type):
        # The custom resource.
        self.parent: Object = json.loads(request.parent)
        self.name: str = self.parent["metadata"]["name"]
        # None for a cluster-scoped parent.
        self.namespace: Optional[str] = self.parent["metadata"].get("namespace")
        self.spec: Any = read(self.parent.get("spec") or {}, spec, "spec")
        # The objects in the cluster that the parent owns.
        self.children: list[Object] = [json.loads(child) for child in request.children]
        # The host's clock in RFC 3339. The module `time` has the same time.
        self.now = request.now
        # Nothing can be created in the namespace any more.
        self.namespace_terminating = request.namespace_terminating
        self.related = {it.id: [json.loads(object) for object in it.objects] for it in request.related}

    def children_of(self, kind: Kind) -> list[Object]:
        """Returns the children of a kind."""
        return [child for child in self.children if kind.matches(child)]

    def child(self, kind: Kind, name: str, namespace: Optional[str] = None) -> Optional[Object]:
        """Returns a child by kind and name, in the parent's namespace unless another one is given."""
        place = (name, namespace or self.namespace)
        for child in self.children_of(kind):
            if (child["metadata"]["name"], child["metadata"].get("namespace")) == place:
                return child
        return None

    def answer(self, need: wit.Need) -> Optional[list[Object]]:
        """Returns the objects that the host read for a need; None when it has not read them yet."""
        return self.related.get(need.id)


def need(
    id: str, kind: Kind, name: Optional[str] = None, namespace: Optional[str] = None, labels: Optional[str] = None
) -> wit.Need:
    """Asks for objects to read: one by name, or those that a label selector picks, as in `kubectl get -l`."""
    return wit.Need(id, kind.api_version, kind.kind, namespace, name, labels)


class Answer:
    """What both answers have."""

    def __init__(self, status: Any = None):
        if dataclasses.is_dataclass(status):
            status = dataclasses.asdict(status)
        self.status: Optional[Object] = status
        self.children: list[Object] = []
        self.conditions: list[wit.Condition] = []
        self.events: list[wit.Event] = []
        self.needs: list[wit.Need] = []
        self.requeue_after_ms: Optional[int] = None

    def child(self, *objects: Object) -> typing.Self:
        """Adds children that should exist, each as a complete object."""
        self.children.extend(objects)
        return self

    def condition(self, type: str, status: Optional[bool], reason: str, message: str) -> typing.Self:
        """Adds a condition, whose status None is `Unknown`. `Ready` replaces the one that the host derives."""
        word = {True: wit.ConditionStatus.TRUE, False: wit.ConditionStatus.FALSE, None: wit.ConditionStatus.UNKNOWN}
        self.conditions.append(wit.Condition(type, word[status], reason, message))
        return self

    def event(self, reason: str, message: str, warning: bool = False) -> typing.Self:
        """Adds an Event on the parent."""
        type = wit.EventType.WARNING if warning else wit.EventType.NORMAL
        self.events.append(wit.Event(type, reason, message))
        return self

    def need(self, *needs: wit.Need) -> typing.Self:
        """Adds objects to read and to watch."""
        self.needs.extend(needs)
        return self

    def requeue_after(self, seconds: float) -> typing.Self:
        """Requests another call after this time even if nothing changes."""
        self.requeue_after_ms = milliseconds(seconds)
        return self

    def texts(self) -> tuple[list[str], Optional[str]]:
        status = None if self.status is None else json.dumps(self.status)
        return [json.dumps(child) for child in self.children], status


class Response(Answer):
    """What should be. The host deletes every child of the parent that the response does not name."""

    def __init__(self, status: Any = None):
        super().__init__(status)
        self.kept: list[wit.ObjectRef] = []
        self.generated: list[wit.GeneratedSecret] = []

    def keep(self, *references: wit.ObjectRef) -> typing.Self:
        """Keeps children as they are: neither applied nor deleted."""
        self.kept.extend(references)
        return self

    def generate(self, name: str, **lengths: int) -> typing.Self:
        """Adds a Secret whose values the host generates once: letters and digits, of these lengths by key."""
        values = [wit.GeneratedValue(key, length, None) for key, length in lengths.items()]
        self.generated.append(wit.GeneratedSecret(name, values))
        return self

    def record(self, request: Request) -> wit.Response:
        # The host applies a child again when it is gone.
        for existing in filter(is_terminating, request.children):
            wanted = [child for child in self.children if refers_to(child, existing)]
            if wanted:
                metadata, kind = existing["metadata"], Kind(existing["apiVersion"], existing["kind"])
                self.keep(kind.reference(metadata["name"], metadata.get("namespace")))
            self.children = [child for child in self.children if child not in wanted]
        children, status = self.texts()
        return wit.Response(
            children,
            self.kept,
            self.generated,
            status,
            self.conditions,
            self.events,
            self.requeue_after_ms,
            self.needs,
        )


class Cleanup(Answer):
    """What a cleanup answers: with `done`, the parent may go."""

    def __init__(self, done: bool = True, status: Any = None):
        super().__init__(status)
        self.done = done

    def record(self, request: Request) -> wit.CleanupResponse:
        children, status = self.texts()
        return wit.CleanupResponse(
            self.done, children, status, self.conditions, self.events, self.requeue_after_ms, self.needs
        )


class Plugin:
    """The exports of a plugin, from its description and functions."""

    def __init__(
        self,
        name: str,
        version: str,
        parent: Kind,
        reconcile: Callable[[Request], Response],
        cleanup: Optional[Callable[[Request], Cleanup]] = None,
        makes: typing.Iterable[Kind] = (),
        reads: typing.Iterable[Kind] = (),
        crd: Optional[str] = None,
        spec: type = dict,
    ):
        self.description = (name, version, wit.Kind(*parent), [wit.Kind(*it) for it in makes])
        self.rest = ([wit.Kind(*it) for it in reads], cleanup is not None, crd)
        self.functions = (reconcile, cleanup or (lambda request: Cleanup()))
        self.spec = spec

    def __call__(self) -> "Plugin":
        """Lets componentize-py create its instance."""
        return self

    def describe(self) -> wit.Description:
        return wit.Description(*self.description, *self.rest)

    def reconcile(self, request: wit.Request) -> wit.Response:
        return self.ask(self.functions[0], request)

    def cleanup(self, request: wit.Request) -> wit.CleanupResponse:
        return self.ask(self.functions[1], request)

    def ask(self, function: Callable[[Request], Any], record: wit.Request) -> Any:
        try:
            request = Request(record, self.spec)
            return function(request).record(request)
        except Failure as failure:
            raise Err(failure.record)
        except Exception as exception:
            # The host shows the last error in the log of a call that failed.
            log.error(place(exception))
            raise


def place(exception: Exception) -> str:
    """Formats an exception with the author's lines of its traceback."""
    frames = traceback.extract_tb(exception.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__]
    return "".join([*traceback.format_exception_only(exception), *traceback.format_list(own)])


EXPECTED = {str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object", list: "a list"}


def read(value: Any, expected: Any, path: str) -> Any:
    """Reads a JSON value into a type: a dataclass, or one of the types of JSON."""
    # The definition in the cluster may be older than the plugin, or not the plugin's.
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else read(value, arguments[0], path)
    if dataclasses.is_dataclass(expected):
        require(isinstance(value, dict), path, dict)
        return expected(**{field.name: read_field(value, field, path) for field in dataclasses.fields(expected)})
    basic = origin or expected
    matches = isinstance(value, (int, float) if basic is float else basic)
    require(matches and (basic is bool or not isinstance(value, bool)), path, basic)
    if basic is list and arguments:
        return [read(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value)]
    if basic is dict and arguments:
        return {key: read(item, arguments[1], f"{path}.{key}") for key, item in value.items()}
    return value


def read_field(value: Object, field: dataclasses.Field, path: str) -> Any:
    # Fields of Kubernetes are in camelCase.
    first, *rest = field.name.split("_")
    name = field.metadata.get("name", first + "".join(word.capitalize() for word in rest))
    if value.get(name) is not None:
        return read(value[name], field.type, f"{path}.{name}")
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    raise Invalid(f"{path}: missing field `{name}`")


def require(holds: bool, path: str, expected: type) -> None:
    if not holds:
        raise Invalid(f"{path}: must be {EXPECTED[expected]}")


def refers_to(child: Object, existing: Object) -> bool:
    metadata, other = child["metadata"], existing["metadata"]
    return (
        Kind(existing["apiVersion"], existing["kind"]).matches(child)
        and metadata["name"] == other["name"]
        and metadata.get("namespace", other.get("namespace")) == other.get("namespace")
    )


def milliseconds(seconds: Optional[float]) -> Optional[int]:
    return None if seconds is None else math.ceil(seconds * 1000)
