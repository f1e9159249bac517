"""The SDK of plugins in Python: it hides the records of the plugin contract, in which objects are text.

A plugin is one instance of `Plugin`, by the name of `Reconciler`, as componentize-py looks it up. The types of its spec are
in operator_types.py.
"""

import ast
import importlib
import json
import math
import os
import random
import sys
import traceback
import types
import typing
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple, Optional, Self

from componentize_py_types import Err, Ok
from wit_world.imports import logging
from wit_world.imports import types as wit

from operator_types import check_type, plain, read, require, require_text, shown

Object = dict[str, Any]

# The module is loaded when the plugin is built, and its state then is the start of every call.
is_built = True


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
        require_text(name, "the name of a reference")
        return wit.ObjectRef(api_version=self.api_version, kind=self.kind, namespace=namespace, name=name)


def condition_record(type: str, status: Optional[bool], reason: str, message: str) -> wit.Condition:
    require_text(type, "the type of a condition")
    require(status is None or isinstance(status, bool), f"the status of the condition {type}", "True, False or None", status)
    require_text(reason, f"the reason of the condition {type}")
    require(isinstance(message, str), f"the message of the condition {type}", "a text", message)
    word = {True: wit.ConditionStatus.TRUE, False: wit.ConditionStatus.FALSE, None: wit.ConditionStatus.UNKNOWN}
    return wit.Condition(type=type, status=word[status], reason=reason, message=message)


def status_text(status: Any) -> Optional[str]:
    if status is None:
        return None
    return object_text(status, "status")


def object_text(given: Any, what: str) -> str:
    value = plain(given, what)
    require(isinstance(value, dict), f"the {what}", "a dict or a dataclass", given)
    return json.dumps(value)


class Failure(Exception):
    """Why there is no answer."""

    record: Any

    def __init__(self, message: str):
        require_text(message, f"the message of {type(self).__name__}")
        super().__init__(message)

    def status(self, status: Any) -> Self:
        """Sets the parent's whole status; without it, the status stays as it is."""
        self.record.value.status = status_text(status)
        return self

    def condition(self, type: str, status: Optional[bool], reason: str, message: str) -> Self:
        """Adds a condition to those of the parent. `Ready` has no effect: the host's reports the failure."""
        self.record.value.conditions.append(condition_record(type, status, reason, message))
        return self


class Invalid(Failure):
    """The user must change the resource. Nothing is retried until it changes."""

    def __init__(self, message: str, reason: Optional[str] = None):
        super().__init__(message)
        if reason is not None:
            require_text(reason, "the reason of Invalid")
        self.record = wit.Failure_Invalid(wit.Invalid(reason=reason, message=message, status=None, conditions=[]))


class Retry(Failure):
    """Something does not exist yet, or failed temporarily. The host retries, after this time or its own back-off."""

    def __init__(self, message: str, after_seconds: float | timedelta | None = None):
        super().__init__(message)
        after = None if after_seconds is None else milliseconds(after_seconds, "after_seconds of Retry")
        self.record = wit.Failure_Retry(wit.Retry(message=message, after_ms=after, status=None, conditions=[]))


class Log:
    """Writes lines to the host's log, where they get the parent's reference and the plugin's digest."""

    def debug(self, *values: Any) -> None:
        self.write(logging.Level.DEBUG, values)

    def info(self, *values: Any) -> None:
        self.write(logging.Level.INFO, values)

    def warning(self, *values: Any) -> None:
        self.write(logging.Level.WARN, values)

    def error(self, *values: Any) -> None:
        self.write(logging.Level.ERROR, values)

    def write(self, level: logging.Level, values: Iterable[Any]) -> None:
        if is_built:
            raise RuntimeError("the log is called while the module is loaded, when the plugin is built: call it in a function")
        logging.log(level, " ".join(map(str, values)).encode(errors="replace").decode())


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

    # plain fields of Request without traceparent: as in wit/types.wit, by plugins/records.py
    # The host's clock in RFC 3339, UTC, in whole seconds that have passed.
    now: str
    # Whether the parent's namespace is being deleted: nothing can be created there any more, and a `cleanup` must do without.
    namespace_terminating: bool
    # end of fields

    def __init__(self, request: wit.Request, spec: Any):
        vars(self).update(vars(request))
        # It differs in each call, and an answer must not depend on it.
        del self.traceparent
        # The custom resource.
        self.parent: Object = json.loads(request.parent)
        self.name: str = self.parent["metadata"]["name"]
        # None for a cluster-scoped parent.
        self.namespace: Optional[str] = self.parent["metadata"].get("namespace")
        given = self.parent.get("spec") or {}
        self.spec: Any = given if spec is None else read(given, spec, "spec", Invalid)
        # The objects in the cluster that the parent owns.
        self.children: list[Object] = [json.loads(child) for child in request.children]
        self.related: dict[str, list[Object]] = {it.id: [json.loads(object) for object in it.objects] for it in request.related}

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
    id: str,
    kind: Kind,
    name: Optional[str] = None,
    namespace: Optional[str] = None,
    labels: Optional[str] = None,
    names: Iterable[str] = (),
    namespaces: Optional[str] = None,
) -> wit.Need:
    """Asks for objects to read: by name, or those that a label selector picks, as in `kubectl get -l`. `namespaces` is a label
    selector of namespaces."""
    require_text(id, "the id of a need")
    require(isinstance(kind, Kind), "the kind of a need", "a Kind", kind)
    names = list(names)
    texts = {"name": name, "namespace": namespace, "labels": labels, "namespaces": namespaces}
    for what, value in (*texts.items(), *(("names", name) for name in names)):
        if value is not None:
            require_text(value, f"the {what} of a need")
    return wit.Need(
        id=id,
        api_version=kind.api_version,
        kind=kind.kind,
        namespace=namespace,
        namespace_selector=namespaces,
        name=name,
        names=names,
        label_selector=labels,
    )


def empty(record: type, **fields: Any) -> Any:
    """Makes a record of the contract. What is not given is false, an empty list or None."""
    for name, of in typing.get_type_hints(record).items():
        fields.setdefault(name, False if of is bool else [] if typing.get_origin(of) is list else None)
    return record(**fields)


class Answer:
    """What both answers have. All arguments are checked where the author's line is on the stack."""

    __slots__ = ("status", "children", "fields")

    def __init__(self, status: Any = None):
        self.status = status
        status_text(status)
        self.children: list[Any] = []
        # What the answer has besides; a method sets most of it.
        self.fields: wit.Response = empty(wit.Response)

    def child(self, *objects: Any) -> Self:
        """Adds children that should exist, each as a complete object: a dict, or a dataclass."""
        for object in objects:
            value = plain(object, title(object))
            require(isinstance(value, dict), "a child", "a dict or a dataclass", object)
            require_text(value.get("apiVersion"), "the apiVersion of a child")
            require_text(value.get("kind"), "the kind of a child")
            metadata = value.get("metadata")
            name = metadata.get("name") if isinstance(metadata, dict) else None
            require_text(name, f"the metadata.name of a {value['kind']}")
        self.children.extend(objects)
        return self

    def condition(self, type: str, status: Optional[bool], reason: str, message: str) -> Self:
        """Adds a condition, whose status None is `Unknown`. `Ready` replaces the one that the host derives."""
        self.fields.conditions.append(condition_record(type, status, reason, message))
        return self

    def event(self, reason: str, message: str, warning: bool = False) -> Self:
        """Adds an Event on the parent."""
        require_text(reason, "the reason of an Event")
        require_text(message, "the message of an Event")
        require(isinstance(warning, bool), "the third argument of event", "True for a warning, or False", warning)
        type = wit.EventType.WARNING if warning else wit.EventType.NORMAL
        self.fields.events.append(wit.Event(type=type, reason=reason, message=message))
        return self

    def need(self, *needs: wit.Need) -> Self:
        """Adds objects to read and to watch."""
        for it in needs:
            require(isinstance(it, wit.Need), "a need", "what the function `need` returns", it)
        self.fields.needs.extend(needs)
        return self

    def requeue_at(self, time: datetime | str) -> Self:
        """Requests another call at this time of the host's clock even if nothing changes. A text is in RFC 3339."""
        what = "a datetime with a time zone, or a text such as 2026-01-02T03:04:05Z"
        try:
            moment = datetime.fromisoformat(time) if isinstance(time, str) else time
        except ValueError:
            moment = None
        is_time = isinstance(moment, datetime) and moment.tzinfo is not None
        require(is_time, "the time of requeue_at", what, time)
        self.fields.requeue_at = moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
        return self

    def requeue_after(self, seconds: float | timedelta) -> Self:
        """Requests another call after this time even if nothing changes."""
        self.fields.requeue_after_ms = milliseconds(seconds, "the time of requeue_after")
        return self

    def record(self, request: Request) -> wit.Response:
        for name in vars(self.fields).keys() - wit.Response.__annotations__.keys():
            raise AttributeError(f"an answer has no field `{name}`")
        # They can be changed after they were added.
        self.fields.children = [json.dumps(plain(child, title(child))) for child in self.children]
        self.fields.status = status_text(self.status)
        return self.fields


class Response(Answer):
    """What should be. The host deletes every child of the parent that the response does not name."""

    __slots__ = ()

    def keep(self, *references: wit.ObjectRef) -> Self:
        """Keeps children as they are: neither applied nor deleted."""
        for it in references:
            require(isinstance(it, wit.ObjectRef), "a child to keep", "what `Kind.reference` returns", it)
        self.fields.keep.extend(references)
        return self

    def parent(self, fields: Any) -> Self:
        """Sets the fields that the parent should have: for a Controller that decorates, below the paths of its `fields`."""
        self.fields.parent = object_text(fields, "parent")
        return self

    def generate(self, name: str, **lengths: int) -> Self:
        """Adds a Secret whose values the host generates once: letters and digits, of these lengths by key."""
        require_text(name, "the name of a generated Secret")
        for key, length in lengths.items():
            is_length = isinstance(length, int) and not isinstance(length, bool) and 0 <= length < 1 << 32
            require(is_length, f"the length of {key}", "a number of characters", length)
        values = [wit.GeneratedValue(key=key, length=length, alphabet=None) for key, length in lengths.items()]
        self.fields.generate.append(wit.GeneratedSecret(name=name, entries=values))
        return self

    def record(self, request: Request) -> wit.Response:
        fields = super().record(request)
        # The host applies a child again when it is gone.
        for existing in filter(is_terminating, request.children):
            wanted = [child for child in fields.children if refers_to(json.loads(child), existing)]
            if wanted:
                metadata, kind = existing["metadata"], Kind(existing["apiVersion"], existing["kind"])
                self.keep(kind.reference(metadata["name"], metadata.get("namespace")))
            fields.children = [child for child in fields.children if child not in wanted]
        return fields


class Cleanup(Answer):
    """What a cleanup answers: with `done`, the parent may go."""

    __slots__ = ()

    def __init__(self, done: bool = True, status: Any = None):
        super().__init__(status)
        require(isinstance(done, bool), "the first argument of Cleanup", "True or False", done)
        self.fields.done = done


class Plugin:
    """The exports of a plugin, from its description and functions."""

    def __init__(
        self,
        name: str,
        version: str,
        parent: Kind,
        reconcile: Callable[[Request], Response],
        cleanup: Optional[Callable[[Request], Cleanup]] = None,
        makes: Iterable[Kind] = (),
        reads: Iterable[Kind] = (),
        # Other kinds that it decorates in the same way.
        also: Iterable[Kind] = (),
        crd: Optional[str] = None,
        spec: Any = dict,
        # Further versions of the kind, such as `v1beta1`, and a function of an object and a version that returns the object
        # in that version, or raises Invalid.
        versions: Iterable[str] = (),
        convert: Optional[Callable[[Object, str], Object]] = None,
        # Changes the spec of an object that is about to be stored. Called again, it must change nothing.
        defaults: Optional[Callable[[Object], None]] = None,
        # Returns what the user must change in a resource, as pairs of a path and a message. The request has the resource
        # alone; the second argument is the stored resource when the webhook asks whether it may be replaced.
        validate: Optional[Callable[[Request, Optional[Object]], Optional[Iterable[tuple[str, str]]]]] = None,
    ):
        require_text(name, "the plugin's name")
        require_text(version, "the plugin's version")
        makes, reads, also, versions = list(makes), list(reads), list(also), list(versions)
        for kind in (parent, *also, *makes, *reads):
            require(isinstance(kind, Kind), "each of the plugin's kinds", "a Kind", kind)
        for function in filter(None, (reconcile, cleanup, convert, defaults, validate)):
            require(callable(function), "each of the plugin's functions", "a function", function)
        require(not versions or convert is not None, "convert of a plugin with versions", "a function", convert)
        check_type(spec, "spec")
        import_all(sys.modules[reconcile.__module__])
        self.description = wit.Description(
            name=name,
            version=version,
            parent=wit.Kind(*parent),
            also=[wit.Kind(*it) for it in also],
            makes=[wit.Kind(*it) for it in makes],
            reads=[wit.Kind(*it) for it in reads],
            finalizer=cleanup is not None,
            crd=crd,
            versions=list(dict.fromkeys([*versions, parent.api_version.split("/")[-1]])) if versions else [],
            defaults=defaults is not None,
            validates=validate is not None,
        )
        self.functions = (reconcile, cleanup or (lambda request: Cleanup()), convert, defaults, validate)
        self.spec = spec

    def __call__(self) -> "Plugin":
        """Lets componentize-py create its instance."""
        return self

    def describe(self) -> wit.Description:
        return self.description

    def validate(self, parent: str, old_parent: Optional[str]) -> list[wit.FieldError]:
        function = self.functions[4]

        def validated() -> list[wit.FieldError]:
            try:
                request = Request(empty(wit.Request, parent=parent, now=""), self.spec)
            except Invalid as failure:
                path, _, message = str(failure).partition(": ")
                return [wit.FieldError(path=path, message=message)]
            try:
                found = function(request, old_parent and json.loads(old_parent))
            except Invalid as failure:
                found = [("spec", str(failure))]
            except Retry as failure:
                raise RuntimeError("validate cannot raise Retry") from failure
            errors = []
            for it in found or []:
                is_pair = isinstance(it, tuple) and len(it) == 2 and all(isinstance(part, str) and part for part in it)
                require(is_pair, "what validate finds", "a pair of a path and a message", it)
                errors.append(wit.FieldError(path=it[0], message=it[1]))
            return errors

        return called(function, validated)

    def reconcile(self, request: wit.Request) -> wit.Response:
        function = self.functions[0]
        return called(function, lambda: self.ask(function, Response, Request(request, self.spec)))

    def cleanup(self, request: wit.Request) -> wit.Response:
        function = self.functions[1]
        try:
            typed = Request(request, self.spec)
        except Invalid as failure:
            # A parent must be able to go whatever its spec is, and the function would fail each time that it reads the spec.
            message = f"{failure}. The plugin cannot read the resource, so its cleanup did not run"
            return Cleanup().event("CleanupSkipped", message, warning=True).record(Request(request, None))
        return called(function, lambda: self.ask(function, Cleanup, typed))

    def convert(self, api_version: str, objects: list[str]) -> list[Any]:
        function = self.functions[2]

        def converted(text: str) -> Any:
            object = json.loads(text)
            if object["apiVersion"] == api_version:
                return Ok(text)
            try:
                result = plain(function(object, api_version.split("/")[-1]), "the converted object")
            except Invalid as failure:
                return Err(str(failure))
            require(isinstance(result, dict), "what convert returns", "an object", result)
            return Ok(json.dumps(result | {"apiVersion": api_version}))

        return called(function, lambda: [converted(text) for text in objects])

    def default(self, parent: str) -> str:
        function = self.functions[3]

        def defaulted() -> str:
            spec = json.loads(parent).get("spec") or {}
            result = function(spec)
            require(result is None, "what defaults returns", "nothing: it changes its argument", result)
            return json.dumps(plain(spec, "spec"))

        return called(function, defaulted)

    def ask(self, function: Callable[[Request], Any], type: type, request: Request) -> Any:
        answer = function(request)
        if not isinstance(answer, type):
            why = ": nothing can be awaited, so it must not be `async`" if isinstance(answer, types.CoroutineType) else ""
            raise TypeError(f"{function.__name__} must return a {type.__name__} (it returned {shown(answer)}){why}")
        return answer.record(request)


def called(function: Callable, run: Callable[[], Any]) -> Any:
    """Calls what calls a function of the author, and reports what that raises."""
    global is_built
    is_built = False
    # Seeded when the plugin is built.
    random.seed(os.urandom(16))
    try:
        return run()
    except Failure as failure:
        raise Err(failure.record) from failure
    except BaseException as exception:
        # The host takes an error of several lines for the exception that ends the call.
        log.error(place(exception, function))
        raise


def place(exception: BaseException, function: Callable) -> str:
    """Formats an exception and its causes with the author's lines of its traceback, or with the author's function."""
    own = [it for it in traceback.extract_tb(exception.__traceback__) if os.path.basename(it.filename) not in SDK]
    if not own:
        code = function.__code__
        own = [traceback.FrameSummary(code.co_filename, code.co_firstlineno, function.__name__, lookup_line=False)]
    # This shortens recursions.
    lines = [*traceback.format_exception_only(exception), *traceback.StackSummary.from_list(own).format()]
    cause = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)
    # An ExceptionGroup has several.
    for cause in [*([] if cause is None else [cause]), *getattr(exception, "exceptions", ())]:
        lines.append(f"caused by {place(cause, function)}")
    return "".join(lines)


SDK = ("operator_plugin.py", "operator_types.py")


def import_all(plugin: types.ModuleType) -> None:
    """Imports what functions of the author import: a call finds no files."""
    if sys.platform != "wasi":
        return
    folder = os.path.dirname(plugin.__file__ or "") + os.sep
    for module in [it for it in list(sys.modules.values()) if (getattr(it, "__file__", None) or "").startswith(folder)]:
        if os.path.basename(module.__file__) in SDK:
            continue
        with open(module.__file__, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        may_be_missing = {inner for outer in ast.walk(tree) if isinstance(outer, ast.Try) for inner in ast.walk(outer)}
        functions = [it for it in ast.walk(tree) if isinstance(it, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))]
        for statement in {inner for function in functions for inner in ast.walk(function)}:
            names = []
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = ["." * statement.level + (statement.module or "")]
            for name in names:
                try:
                    importlib.import_module(name, module.__package__)
                except ImportError as error:
                    if statement not in may_be_missing:
                        where = f"{os.path.basename(module.__file__)}, line {statement.lineno}"
                        raise ImportError(f"{where}: {error}. A call finds no files, so the build imports it") from None


def title(child: Any) -> str:
    """Names a child in a message."""
    try:
        return f"{child['kind']} {child['metadata']['name']}"
    except (KeyError, TypeError):
        return "a child"


def refers_to(child: Object, existing: Object) -> bool:
    metadata = existing["metadata"]
    namespace = child["metadata"].get("namespace", metadata.get("namespace"))
    same = (child["apiVersion"], child["kind"], child["metadata"]["name"], namespace)
    return same == (existing["apiVersion"], existing["kind"], metadata["name"], metadata.get("namespace"))


def milliseconds(time: float | timedelta, what: str) -> int:
    seconds = time.total_seconds() if isinstance(time, timedelta) else time
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and math.isfinite(seconds)
    require(is_number and 0 <= seconds < 1 << 40, what, "a number of seconds, or a timedelta", time)
    return round(seconds * 1000)
