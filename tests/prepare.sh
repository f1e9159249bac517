#!/usr/bin/env bash
# Builds all that `make run` and `make test` start from: control plane, host, plugins. Prints, as the only line on
# stdout, the folder with the control plane's programs.
#
#   tests/prepare.sh              for the tests: all of the workspace
#   tests/prepare.sh run          for `make run`: the host, the playground and the samples, as far as their tool-chains are here
#   tests/prepare.sh run FOLDER   for `make run PLUGIN=FOLDER`: that plugin instead of the samples
set -euo pipefail

purpose=${1:-test} plugin=${2:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

words=$(mktemp) took=$(mktemp)
trap 'stop_job; rm -f "$words" "$took"' EXIT

# Of the whole workspace `make run` needs less, with the same features, so that nothing is compiled again for the tests.
packages=(--workspace)
[[ $purpose != run ]] || packages=(--package operator-host --package control-plane --bins)

color=never
[[ ! -t 2 ]] || color=always
host() {
    local status=0
    CARGO_TERM_PROGRESS_WHEN=always CARGO_TERM_PROGRESS_WIDTH=60 \
        cargo build "${packages[@]}" --color "$color" >"$words" 2>&1 || status=$?
    echo "$SECONDS" >"$took"
    return "$status"
}

# What cargo said, without the lines that tell how far it is.
cargo_words() {
    tr '\r' '\n' <"$words" | awk '{ text = $0; gsub(/\033\[[0-9;]*[mK]/, "", text) }
        text !~ /^ *((Building|Compiling|Downloading|Downloaded|Updating|Locking|Blocking|Finished|Adding) |$)/'
}

# cargo runs beside the installation, since it waits for downloads and for single crates. The installation is in the
# foreground: apt-get and sudo use the terminal, and the system stops a background job that does. What cargo says follows
# when both have ended.
if [[ ! -x ${CARGO_TARGET_DIR:-target}/debug/operator-host ]]; then
    say "Building all that is needed, once: 15 to 25 minutes on 2 cores, and a few minutes less where Kubernetes can be downloaded"
fi
say "Building the host"
start_job host
building=$job

folder=$(CARGO_WORDS=$words tests/control-plane/install.sh) || fail "there is no control plane" "See the messages above."
lasted Kubernetes "$SECONDS"
status=0
CARGO_WORDS=$words wait_for "The host" "$building" || status=$?
job=''
cargo_words >&2
((status == 0)) || fail "the host does not build" "See the compiler's messages above."
lasted "the host" "$(cat "$took")"
started=$SECONDS
# After the others: it may install Debian packages, and apt does one thing at a time.
if [[ -n $plugin ]]; then
    say "Building the plugin in $plugin"
    env -u MAKEFLAGS -u MAKELEVEL make --directory "$plugin" >&2 ||
        fail "the plugin in $plugin does not build" "Run \`make\` in that folder: see the messages above."
elif [[ $purpose == run ]]; then
    say "Building the plugins"
    plugins/build.sh samples >&2
else
    say "Building the plugins"
    plugins/build.sh >&2
fi
lasted "the plugins" $((SECONDS - started))
((SECONDS < 20)) || say "All is built, in $(clock "$SECONDS"): ${phases%, } (the host beside Kubernetes)"
echo "$folder"
