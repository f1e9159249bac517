"""How the SDK reads a spec into Python's types, and how it makes JSON of them."""

import dataclasses
import enum
import math
import types
import typing
from datetime import datetime, timezone
from typing import Any


def require(holds: bool, what: str, expected: str, value: Any) -> None:
    if not holds:
        raise TypeError(f"{what} must be {expected} (it is {shown(value)})")


def require_text(value: Any, what: str) -> None:
    require(isinstance(value, str) and value != "", what, "a text that is not empty", value)


def shown(value: Any) -> str:
    """Describes a value in a message."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value) if len(value) < 80 else "a long text"
    if isinstance(value, types.CoroutineType):
        return "a coroutine"
    return f"a {type(value).__name__}"


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def name_of(field: dataclasses.Field) -> str:
    """Returns the name of a field in the resource."""
    return field.metadata.get("name", camel_case(field.name))


BASIC = {str: "a string", int: "an integer", float: "a number", bool: "true or false", dict: "an object", list: "a list"}
NONE = type(None)


def hints(expected: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, also of annotations that are text."""
    return typing.get_type_hints(expected)


def alternatives(expected: Any) -> tuple[Any, ...]:
    """Returns the types of a union, or the type alone."""
    is_union = typing.get_origin(expected) in (typing.Union, types.UnionType)
    return typing.get_args(expected) if is_union else (expected,)


def is_enum(expected: Any) -> bool:
    return isinstance(expected, type) and issubclass(expected, enum.Enum)


def check_type(expected: Any, path: str, within: tuple[Any, ...] = ()) -> None:
    """Raises an error if a spec cannot be read into a type."""
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if dataclasses.is_dataclass(expected):
        if expected not in within:
            for name, hint in hints(expected).items():
                check_type(hint, f"{path}.{name}", (*within, expected))
    elif len(alternatives(expected)) > 1 or origin is list:
        for argument in arguments:
            check_type(argument, path if origin is not list else f"{path}[]", within)
    elif origin is dict:
        if arguments[0] is not str:
            raise TypeError(f"{path}: the keys of an object are texts: use `dict[str, …]`")
        check_type(arguments[1], f"{path}.*", within)
    elif not (expected in BASIC or expected in (Any, object, NONE, datetime) or origin is typing.Literal or is_enum(expected)):
        known = "a dataclass, str, int, float, bool, list, dict, datetime, Enum, Literal, Any, or a union of those"
        raise TypeError(f"{path}: a field of a spec cannot be of the type {expected}; it can be of {known}")


def expectation(expected: Any) -> str:
    """Describes a type in a message for the user."""
    if typing.get_origin(expected) is typing.Literal:
        return " or ".join(repr(it) for it in typing.get_args(expected))
    if is_enum(expected):
        return " or ".join(repr(it.value) for it in expected)
    if expected is datetime:
        return "a time in RFC 3339"
    if dataclasses.is_dataclass(expected):
        return BASIC[dict]
    return BASIC.get(typing.get_origin(expected) or expected, "null")


class Mismatch(Exception):
    """A value that is not of the type."""


def read(value: Any, expected: Any, path: str, failure: type) -> Any:
    """Reads a JSON value into a type.

    The definition in the cluster may be older than the plugin, or not the plugin's: the failure says where.
    """
    try:
        return read_value(value, expected, path)
    except Mismatch as mismatch:
        raise failure(str(mismatch)) from None


def read_value(value: Any, expected: Any, path: str) -> Any:
    choices = alternatives(expected)
    if len(choices) > 1:
        return read_union(value, choices, path)
    origin, arguments = typing.get_origin(expected), typing.get_args(expected)
    if expected in (Any, object):
        return value
    if dataclasses.is_dataclass(expected):
        require_match(isinstance(value, dict), expected, path)
        types_of = hints(expected)
        fields = [it for it in dataclasses.fields(expected) if it.init]
        return expected(**{it.name: read_field(value, it, types_of[it.name], path) for it in fields})
    if origin is typing.Literal:
        require_match(any(value == it and type(value) is type(it) for it in arguments), expected, path)
        return value
    if is_enum(expected):
        found = [it for it in expected if it.value == value and type(it.value) is type(value)]
        require_match(bool(found), expected, path)
        return found[0]
    if expected is datetime:
        return read_time(value, path)
    basic = origin or expected
    matches = isinstance(value, (int, float) if basic is float else basic)
    require_match(matches and (basic is bool or not isinstance(value, bool)), expected, path)
    if origin is list:
        return [read_value(item, arguments[0], f"{path}[{index}]") for index, item in enumerate(value)]
    if origin is dict:
        return {key: read_value(item, arguments[1], f"{path}.{key}") for key, item in value.items()}
    return value


def read_union(value: Any, choices: tuple[Any, ...], path: str) -> Any:
    problems = []
    for choice in choices:
        try:
            return read_value(value, choice, path)
        except Mismatch as mismatch:
            problems.append(str(mismatch))
    others = [choice for choice in choices if choice is not NONE]
    if len(others) == 1:
        raise Mismatch(problems[choices.index(others[0])])
    # What is wrong within an object says more than that it is none of the types.
    inner = [problem for problem in problems if not problem.startswith(f"{path}: must be ")]
    words = " or ".join(dict.fromkeys(expectation(choice) for choice in others))
    raise Mismatch(inner[0] if inner else f"{path}: must be {words}")


def read_field(value: dict[str, Any], field: dataclasses.Field, expected: Any, path: str) -> Any:
    name = name_of(field)
    if value.get(name) is not None:
        return read_value(value[name], expected, f"{path}.{name}")
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    if NONE in alternatives(expected) or expected in (Any, object):
        return None
    raise Mismatch(f"{path}: missing field `{name}`")


def read_time(value: Any, path: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        require_match(time.tzinfo is not None, datetime, path)
        return time
    except (TypeError, ValueError):
        raise Mismatch(f"{path}: must be {expectation(datetime)}") from None


def require_match(holds: bool, expected: Any, path: str) -> None:
    if not holds:
        raise Mismatch(f"{path}: must be {expectation(expected)}")


LEVELS = 100


def plain(value: Any, path: str, within: tuple[int, ...] = ()) -> Any:
    """Returns a value as JSON has it. What JSON does not have is an error that names its place."""
    if isinstance(value, enum.Enum):
        return plain(value.value, path, within)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TypeError(f"{path} is {value}, which JSON does not have")
        return value
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise TypeError(f"{path} is a text with half a character (a surrogate alone)")
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise TypeError(f"{path} is a datetime without a time zone")
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    if id(value) in within:
        raise TypeError(f"{path} contains itself")
    if len(within) >= LEVELS:
        raise TypeError(f"{path} is nested more than {LEVELS} levels deep")
    within = (*within, id(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {name_of(field): getattr(value, field.name) for field in dataclasses.fields(value)}
        # As fields of Kubernetes: what has no value is left out.
        return {name: plain(it, f"{path}.{name}", within) for name, it in fields.items() if it is not None}
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {shown(key)}, and JSON has only texts")
        return {plain(key, f"a key of {path}"): plain(it, f"{path}.{key}", within) for key, it in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{path}[{index}]", within) for index, item in enumerate(value)]
    raise TypeError(f"{path} is {shown(value)}, which JSON does not have")
