#!/usr/bin/env bash
# Builds all that `make run` and `make test` start from: control plane, host, plugins. Prints, as the only line on
# stdout, the folder with the control plane's programs (nothing with CLUSTER=current, which needs none).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

folder=$(mktemp)
trap 'stop_job; rm -f "$folder"' EXIT

# Beside cargo, which waits for downloads and for single crates. cargo is quiet: on a terminal, the line that is written
# over and over is the control plane's.
control_plane() {
    tests/control-plane/install.sh >"$folder"
}
[[ ${CLUSTER:-local} == current ]] || start_job control_plane

say "Building the host"
cargo build --workspace --quiet >&2 || fail "the host does not build" "See the compiler's messages above."
status=0
[[ -z $job ]] || wait "$job" || status=$?
job=''
((status == 0)) || fail "there is no control plane" "See the messages above."
# After the others: it may install Debian packages, and apt does one thing at a time.
say "Building the plugins"
plugins/build.sh >&2
cat "$folder"
