#!/usr/bin/env bash
# Packages the four crates as they would be published, and builds each from its package alone: tests/package.sh.
#
# A package has no folder around it, so this finds what a crate reads from outside of its own. The packages are in
# target/package and plugins/target/package. Nothing is published.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

say "Packaging the host and its libraries"
# With the target folder of everything else, only these crates are compiled.
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target} cargo package --allow-dirty --quiet \
    --package operator-host-contract --package operator-host-runtime --package operator-host >&2
say "Packaging the SDK"
cd plugins
CARGO_TARGET_DIR=$PWD/target cargo package --allow-dirty --quiet --package operator-plugin >&2
