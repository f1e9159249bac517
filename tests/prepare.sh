#!/usr/bin/env bash
# Builds all that `make run` and `make test` start from: control plane, host, plugins. Prints, as the only line on
# stdout, the folder with the control plane's programs.
#
# tests/prepare.sh [FOLDER]: with the folder of a plugin, builds that one instead of the samples.
set -euo pipefail

plugin=${1:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

words=$(mktemp)
trap 'stop_job; rm -f "$words"' EXIT

# cargo runs beside the installation, since it waits for downloads and for single crates. The installation is in the
# foreground: apt-get and sudo use the terminal, and the system stops a background job that does. What cargo says follows
# when both have ended.
color=never
[[ ! -t 2 ]] || color=always
host() {
    cargo build --workspace --quiet --color "$color" >"$words" 2>&1
}
say "Building the host"
start_job host

folder=$(tests/control-plane/install.sh) || fail "there is no control plane" "See the messages above."
status=0
wait "$job" || status=$?
job=''
cat "$words" >&2
((status == 0)) || fail "the host does not build" "See the compiler's messages above."
# After the others: it may install Debian packages, and apt does one thing at a time.
if [[ -n $plugin ]]; then
    say "Building the plugin in $plugin"
    env -u MAKEFLAGS -u MAKELEVEL make --directory "$plugin" >&2 ||
        fail "the plugin in $plugin does not build" "Run \`make\` in that folder: see the messages above."
else
    say "Building the plugins"
    plugins/build.sh >&2
fi
echo "$folder"
