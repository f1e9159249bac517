#!/usr/bin/env bash
# The oldest Rust that works is written in several files: they must name the same version, and the compiler in use must be
# that one or a newer one. Which functions of the standard library are too new for it, Clippy says (incompatible_msrv).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

msrv=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[[ -n $msrv ]] || fail "Cargo.toml has no rust-version" "Name the oldest Rust that works in [workspace.package]."

# names FILE PATTERN: every version in FILE that PATTERN captures is that one, and there is one.
names() {
    local file=$1 found
    found=$(sed -n -E "s/.*$2.*/\1/p" "$file" | sort -u)
    [[ $found == "$msrv" ]] ||
        fail "$file names Rust ${found:-not at all}, Cargo.toml $msrv" "Write the same version into both."
}
names plugins/Cargo.toml '^rust-version = "([0-9.]+)"'
names Dockerfile 'rust:([0-9.]+)-'
names CONTRIBUTING.md 'toolchain install ([0-9.]+)'
names .github/workflows/ci.yml 'rust:([0-9.]+)-'

in_use=$(rustc --version | cut -d ' ' -f 2)
oldest=$(printf '%s\n' "$msrv" "${in_use%%-*}" | sort --version-sort | head -n 1)
[[ $oldest == "$msrv" ]] || fail "rustc $in_use is older than $msrv" "rustup toolchain install $msrv"
