#!/usr/bin/env bash
# Packages the crates as they would be published, and builds each from its package alone: tests/package.sh.
#
# A package has no folder around it, so this finds what a crate reads from outside of its own. The packages are in
# target/package and plugins/target/package. Nothing is published.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

# Cargo keeps what it has unpacked and compiled of a package by its version, which is the same in the next run.
target=${CARGO_TARGET_DIR:-$PWD/target}
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/{src,cache}/*/operator-host-[a-z]*-[0-9]*
for file in "$target"/debug/deps/operator_host_*-*.d; do
    if [[ -e $file ]] && grep --quiet registry/src "$file"; then
        hash=${file##*-}
        rm -rf "$target"/debug/.fingerprint/operator-host-*-"${hash%.d}"
    fi
done

say "Packaging the host and its libraries"
# With the target folder of everything else, only these crates are compiled.
packages=(--package operator-host)
for manifest in host/*/Cargo.toml; do
    packages+=(--package "$(sed -n 's/^name = "\(.*\)"$/\1/p' "$manifest" | head -n 1)")
done
CARGO_TARGET_DIR=$target cargo package --allow-dirty --quiet "${packages[@]}" >&2
say "Packaging the SDK"
cd plugins
# No registry has the crate that it depends on yet.
CARGO_TARGET_DIR=$PWD/target cargo package --allow-dirty --quiet --package operator-plugin \
    --config 'patch.crates-io.operator-host-schema.path="../host/schema"' >&2
