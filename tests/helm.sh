#!/usr/bin/env bash
# Helm's own engine without Helm: tests/helm.sh lint CHART | install NAMESPACE RELEASE CHART VALUES.json
#
# `fetch` only fetches the engine, for a caller that will have no network. `upgrade` takes the same as `install`, and reuses
# the values of the release. `package CHART --destination FOLDER` and `push FILE oci://REGISTRY [--plain-http]` are as Helm has them.
#
# The Python package helm-sdkpy carries Helm's Go library, with a C interface. It is fetched by its name, once, into the
# user's cache; helm.py beside this script calls the library. `install` uses KUBECONFIG and prints the release. With
# HELM_VALIDATES=no it expects that the namespace exists, and leaves validation to the API server.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"

version=0.1.32
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/helm
entry=$cache/$version

fetch() {
    local work
    mkdir -p "$cache"
    exec 9>"$cache/.lock"
    flock 9
    [[ ! -d $entry ]] || return 0
    command -v python3 >/dev/null || install_packages "to run Helm's engine" python3
    python3 -c 'import ensurepip' 2>/dev/null || install_packages "to fetch Helm's engine" python3-venv
    work=$(mktemp -d "$cache/.fetch-XXXXXX")
    say "Fetching Helm's engine (the Python package helm-sdkpy $version), once"
    python3 -m venv "$work/venv"
    # Only the library in it is used, which does not care for Python's version.
    "$work/venv/bin/pip" --quiet --disable-pip-version-check download --no-deps --only-binary=:all: \
        --python-version 3.12 --dest "$work" "helm-sdkpy==$version" >&2
    python3 -m zipfile -e "$work"/helm_sdkpy-*.whl "$work/package"
    mv -T "$work/package/helm_sdkpy" "$entry"
    rm -rf "$work"
}

[[ -d $entry ]] || fetch
[[ ${1:-} != fetch ]] || exit 0
case $(uname -m) in
    x86_64) machine=amd64 ;;
    aarch64) machine=arm64 ;;
    *) fail "helm-sdkpy has no library for $(uname -m)" ;;
esac
exec python3 "$here/helm.py" "$entry/_lib/linux-$machine/libhelm_sdkpy.so" "$@"
