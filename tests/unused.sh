#!/usr/bin/env bash
# Looks for dependencies that no source names, with cargo-machete: the one on the PATH, or one in the user's cache, which
# cargo compiles there once (without optimizing, which would take minutes).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

machete=$(command -v cargo-machete || cargo_tool cargo-machete cargo-machete@0.9.1 --debug) || {
    say "Unused dependencies are not looked for: cargo-machete cannot be installed here"
    exit 0
}
# Each folder by itself: built files are not in them, and what it cannot read (the template of a manifest) it passes over.
report=$("$machete" host tests plugins 2>&1) || {
    echo "$report" >&2
    fail "a dependency is not used" \
        "Remove it from that Cargo.toml, or name it in [package.metadata.cargo-machete] when it is used after all."
}
