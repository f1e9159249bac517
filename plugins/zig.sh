#!/usr/bin/env bash
# Prints the path of a Zig, for the plugins in Zig: the package `ziglang` of PyPI, in the user's cache folder. ZIG=path
# forces one, which must be of the same version, since Zig changes.
set -euo pipefail
# shellcheck source=plugins/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

version=0.17.1

unpack_zig() {
    unpack_wheel "$1" "ziglang==$version"
    chmod +x "$1/ziglang/zig"
}

if [[ -n ${ZIG:-} ]]; then
    echo "$ZIG"
    exit
fi
installed=$(command -v zig || true)
if [[ -n $installed && $("$installed" version) == "$version" ]]; then
    echo "$installed"
    exit
fi
echo "$(in_cache "zig/$version" unpack_zig)/ziglang/zig"
