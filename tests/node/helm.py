"""Takes `helm install` and `helm upgrade` as people write them, and runs Helm's own engine (tests/helm.sh) with the same values."""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml


def merge(into, values):
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            merge(into[name], value)
        else:
            into[name] = value


def put(values, path, value):
    """Sets a value by a path such as a.b[0].c."""
    steps = [int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path)]
    for step, following in zip(steps, steps[1:]):
        empty = [] if isinstance(following, int) else {}
        if isinstance(step, int):
            values.extend([empty] * (step + 1 - len(values)))
            values = values[step]
        else:
            values = values.setdefault(step, empty)
    values[steps[-1]] = value


parser = argparse.ArgumentParser(prog="helm")
parser.add_argument("command", choices=["install", "upgrade"])
parser.add_argument("release")
parser.add_argument("chart")
parser.add_argument("--namespace", required=True)
parser.add_argument("--reuse-values", action="store_true")
parser.add_argument("-f", dest="files", action="append", default=[])
for option in ("--set", "--set-file", "--set-json"):
    parser.add_argument(option, action="append", default=[])
arguments = parser.parse_args()

values = {}
for name in arguments.files:
    merge(values, yaml.safe_load(pathlib.Path(name).read_text(encoding="utf-8")))
for assignment in arguments.set_json:
    name, text = assignment.split("=", 1)
    put(values, name, json.loads(text))
for assignment in arguments.set:
    name, text = assignment.split("=", 1)
    put(values, name, {"true": True, "false": False}.get(text, text))
for assignment in arguments.set_file:
    name, file = assignment.split("=", 1)
    put(values, name, pathlib.Path(file).read_text(encoding="utf-8"))
with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    json.dump(values, file)
    file.flush()
    script = pathlib.Path(__file__).parent.parent / "helm.sh"
    # Debian's API server of 1.20 cannot encode the description of its API as Helm reads it.
    helm = subprocess.run(
        [script, arguments.command, arguments.namespace, arguments.release, arguments.chart, file.name],
        env=os.environ | {"HELM_VALIDATES": "no"},
        check=False,
    )
sys.exit(helm.returncode)
