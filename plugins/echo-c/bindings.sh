#!/usr/bin/env bash
# Writes bindings/ anew from the WIT world: plugins/echo-c/bindings.sh [--check]
#
# Needs wit-bindgen's command line, which is installed into the user's cache folder where it is not there. With --check
# nothing is written; it fails when the bindings are not what the world says.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# The version that the Rust SDK uses.
version=0.61.1
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/wit-bindgen/$version

if [[ ! -x $cache/bin/wit-bindgen ]]; then
    echo "plugins: installing wit-bindgen-cli $version with cargo" >&2
    cargo install --quiet --locked "wit-bindgen-cli@$version" --no-default-features --features c --root "$cache" >&2
fi
"$cache/bin/wit-bindgen" c "$here/../../wit" --world plugin --out-dir "$here/bindings" "$@" >&2
# A test compares this, so that it needs no wit-bindgen.
sum=$(cat "$here"/../../wit/*.wit | sha256sum | cut -d ' ' -f 1)
if [[ ${1:-} == --check ]]; then
    [[ $(<"$here/bindings/wit.sha256") == "$sum" ]]
else
    echo "$sum" >"$here/bindings/wit.sha256"
fi
