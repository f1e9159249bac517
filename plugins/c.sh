#!/usr/bin/env bash
# Prints the path of a clang that compiles C to WebAssembly (wasm32-wasi), for the plugins in C.
#
# The installed one, if it can; else Debian's packages. CC=path forces one, such as that of the WASI SDK.
set -euo pipefail

say() { echo "plugins: $*" >&2; }
die() { say "$*"; exit 1; }

# Compiler, linker, C library and the compiler's own run-time library: each is a package of its own.
knows_wasi() {
    local work status=0
    work=$(mktemp -d)
    echo 'int answer(void); int answer(void) { return 42; }' >"$work/a.c"
    "$1" --target=wasm32-wasi -mexec-model=reactor -o "$work/a.wasm" "$work/a.c" 2>/dev/null || status=1
    rm -rf "$work"
    return "$status"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo --preserve-env=DEBIAN_FRONTEND "$@"; fi
}

if [[ -n ${CC:-} ]]; then
    knows_wasi "$CC" || die "CC=$CC does not compile to wasm32-wasi: it needs wasm-ld, wasi-libc and compiler-rt"
    echo "$CC"
    exit
fi
installed=$(command -v clang || true)
if [[ -z $installed ]] || ! knows_wasi "$installed"; then
    command -v apt-get >/dev/null ||
        die "the plugins in C need clang with wasi-libc: the WASI SDK, or Debian's clang, lld and wasi-libc"
    export DEBIAN_FRONTEND=noninteractive
    say "installing clang, lld and wasi-libc with apt-get, to compile C to wasm32-wasi"
    install=(as_root apt-get install --yes --no-install-recommends)
    "${install[@]}" clang lld wasi-libc >&2 || { as_root apt-get update >&2; "${install[@]}" clang lld wasi-libc >&2; }
    installed=$(command -v clang)
    # The library has the compiler's number in its name.
    number=$("$installed" -dumpversion)
    "${install[@]}" "libclang-rt-${number%%.*}-dev-wasm32" >&2
    knows_wasi "$installed" || die "$installed still does not compile to wasm32-wasi: set CC to one that does"
fi
echo "$installed"
