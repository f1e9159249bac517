"""Calls Helm's library, of the package helm-sdkpy, through its C interface. Called by helm.sh."""

import ctypes
import json
import os
import sys


def main(library, command, *arguments):
    helm = ctypes.CDLL(library)
    helm.helm_sdkpy_last_error.restype = ctypes.c_char_p
    result = ctypes.c_char_p()

    def check(code):
        if code != 0:
            sys.exit("helm: " + helm.helm_sdkpy_last_error().decode())

    def configuration(namespace, options=b"{}"):
        handle = ctypes.c_ulonglong()
        kubeconfig = os.environ.get("KUBECONFIG", "")
        check(helm.helm_sdkpy_config_create(text(namespace), text(kubeconfig), None, options, ctypes.byref(handle)))
        return handle

    if command == "lint":
        (chart,) = arguments
        check(helm.helm_sdkpy_lint(configuration("default"), text(chart), ctypes.byref(result)))
        # The library does not fail because of them, and keeps their texts to itself.
        if json.loads(result.value)["Errors"]:
            sys.exit("helm: lint: " + result.value.decode())
    elif command in ("install", "upgrade"):
        namespace, release, chart, values = arguments
        with open(values, encoding="utf-8") as file:
            values = file.read()
        # Helm also validates the namespace that it creates.
        validates = os.environ.get("HELM_VALIDATES", "yes") == "yes"
        options = {
            "create_namespace": validates,
            "disable_openapi_validation": not validates,
            "wait": False,
            "server_side_apply": "true",
            "timeout_seconds": 60,
            # Only an upgrade reads it.
            "reuse_values": True,
        }
        options = text(json.dumps(options))
        action = helm.helm_sdkpy_install if command == "install" else helm.helm_sdkpy_upgrade
        check(
            action(configuration(namespace), text(release), text(chart), text(values), b"", options, ctypes.byref(result))
        )
    elif command == "package":
        chart, _destination, folder = arguments
        check(helm.helm_sdkpy_package(configuration("default"), text(chart), text(folder), ctypes.byref(result)))
    elif command == "push":
        chart, registry, *more = arguments
        options = text(json.dumps({"plain_http": "--plain-http" in more}))
        check(helm.helm_sdkpy_push(configuration("default", options), text(chart), text(registry), options))
        return
    else:
        sys.exit(f"helm.py: no command {command}")
    print(result.value.decode())


def text(value):
    return value.encode()


main(*sys.argv[1:])
