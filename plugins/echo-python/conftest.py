"""Lets pytest import and call the plugin: what the host provides to it is replaced here. `make build/bindings` comes first."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER / "build/bindings"), str(FOLDER / "build/packages")]

from componentize_py_types import Err, Ok  # noqa: E402
from wit_world.imports import logging, types  # noqa: E402

from operator_plugin import empty  # noqa: E402

logging.log = lambda level, message: print(f"{level.name}: {message}", file=sys.stderr)


class Host:
    """Calls a plugin as the host does. When it raises Invalid or Retry, that exception arrives here."""

    def __init__(self) -> None:
        import plugin

        self.plugin = plugin.Reconciler

    def validate(self, parent: Any, old_parent: Any = None) -> list[tuple[str, str]]:
        """Returns what the user must change, as pairs of a path and a message."""
        errors = call(self.plugin.validate, json.dumps(parent), old_parent and json.dumps(old_parent))
        return [(error.path, error.message) for error in errors]

    def reconcile(self, parent: Any, **rest: Any) -> Any:
        """Returns the answer with its objects: `children`, `status`, `conditions` and so on. `rest` is the rest of the
        request: `children`, `related` by the id of the need, `now` and `namespace_terminating`."""
        return self.ask(self.plugin.reconcile, parent, **rest)

    def cleanup(self, parent: Any, **rest: Any) -> Any:
        return self.ask(self.plugin.cleanup, parent, **rest)

    def convert(self, api_version: str, *objects: Any) -> list[Any]:
        """Returns the objects in another version, or a text that says why there is none."""
        results = call(self.plugin.convert, api_version, [json.dumps(it) for it in objects])
        return [json.loads(it.value) if isinstance(it, Ok) else it.value for it in results]

    def default(self, parent: Any) -> Any:
        """Returns the spec with its defaults."""
        return json.loads(call(self.plugin.default, json.dumps(parent)))

    def ask(
        self,
        function: Any,
        parent: Any,
        children: Any = (),
        related: Any = {},
        now: str = "2026-01-01T00:00:00Z",
        **plain: Any,
    ) -> Any:
        request = empty(
            types.Request,
            parent=json.dumps(parent),
            children=[json.dumps(child) for child in children],
            related=[types.Related(id=id, objects=[json.dumps(it) for it in found]) for id, found in related.items()],
            now=now,
            **plain,
        )
        answer = call(function, request)
        answer.children = [json.loads(child) for child in answer.children]
        answer.status = answer.status and json.loads(answer.status)
        return answer


def call(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Err as error:
        raise (error.__cause__ or error) from None


@pytest.fixture
def host() -> Host:
    return Host()
