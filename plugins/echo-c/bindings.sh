#!/usr/bin/env bash
# Generates bindings/ from the WIT world: plugins/echo-c/bindings.sh
#
# Needs wit-bindgen's command line, which is installed into the user's cache folder where it is not there.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/../../tests/control-plane/lib.sh"

# The version that the Rust SDK uses.
bindgen=$(cargo_tool wit-bindgen wit-bindgen-cli@0.61.1 --no-default-features --features c)
"$bindgen" c "$here/../../wit" --world plugin --out-dir "$here/bindings" >&2
# A test compares this, so that it needs no wit-bindgen.
sum=$(cat "$here"/../../wit/*.wit | sha256sum | cut -d ' ' -f 1)
echo "$sum" >"$here/bindings/wit.sha256"
