#!/usr/bin/env bash
# Builds all that `make run` and `make test` start from: control plane, host, plugins. Prints, as the only line on
# stdout, the folder with the control plane's programs (nothing with CLUSTER=current, which needs none).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

trap stop_job EXIT

# cargo runs beside the installation, since it waits for downloads and for single crates. The installation is in the
# foreground: apt-get and sudo use the terminal, and the system stops a background job that does. cargo is quiet: on a
# terminal, the line that is written over and over is the control plane's.
host() {
    cargo build --workspace --quiet >&2
}
say "Building the host"
start_job host

folder=''
if [[ ${CLUSTER:-local} != current ]]; then
    folder=$(tests/control-plane/install.sh) || fail "there is no control plane" "See the messages above."
fi
status=0
wait "$job" || status=$?
job=''
((status == 0)) || fail "the host does not build" "See the compiler's messages above."
# After the others: it may install Debian packages, and apt does one thing at a time.
say "Building the plugins"
plugins/build.sh >&2
[[ -z $folder ]] || echo "$folder"
