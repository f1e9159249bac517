#!/usr/bin/env bash
# Checks the workflows of the forge against their schema: tests/workflows.sh. The Python package check-jsonschema brings the
# schema. It is fetched by its name, once, into the user's cache.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

version=0.39.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/check-jsonschema
entry=$cache/$version

fetch() {
    mkdir -p "$cache"
    exec 9>"$cache/.lock"
    flock 9
    [[ ! -e $entry/complete ]] || return 0
    command -v python3 >/dev/null || install_packages "to check the workflows" python3
    python3 -c 'import ensurepip' 2>/dev/null || install_packages "to check the workflows" python3-venv
    say "Fetching the schema of workflows (the Python package check-jsonschema $version), once"
    # A virtual environment stays where it was made.
    rm -rf "$entry"
    python3 -m venv "$entry"
    "$entry/bin/pip" --quiet --disable-pip-version-check install "check-jsonschema==$version" >&2
    touch "$entry/complete"
}

[[ -e $entry/complete ]] || fetch
exec "$entry/bin/check-jsonschema" --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
