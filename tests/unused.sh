#!/usr/bin/env bash
# Looks for dependencies that no source names, with cargo-machete: the one on the PATH, or one in the user's cache, which
# cargo compiles there once (half a minute).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

version=0.9.1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/cargo-machete/$version

if command -v cargo-machete >/dev/null; then
    machete=cargo-machete
else
    machete=$cache/bin/cargo-machete
    if [[ ! -x $machete ]]; then
        say "Compiling cargo-machete $version"
        cargo install --quiet --locked "cargo-machete@$version" --root "$cache" >&2 || {
            say "Unused dependencies are not looked for: cargo-machete cannot be installed here"
            exit 0
        }
    fi
fi
# The manifests alone: target folders hold manifests of their own.
mapfile -t folders < <(git ls-files 'host/Cargo.toml' 'host/runtime/Cargo.toml' 'tests/*Cargo.toml' 'plugins/*/Cargo.toml' |
    xargs -n 1 dirname)
"$machete" "${folders[@]}"
