#!/usr/bin/env bash
# Measures the first hour of a newcomer: in an empty clone, with an empty cache, how long until `make run` shows a sample that
# is Ready, how long the same takes the second time, and how long `make check` takes once it is built. Prints a table.
#
# What is installed on this machine stays (Debian's packages, Rust and its targets, downloaded crates), so their downloads are
# not in the figures. With CONTROL_PLANE_MIRROR the control plane is downloaded from there, and built otherwise.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"

work=$(mktemp -d)
trap 'stop_job; rm -rf "$work"' EXIT
export XDG_CACHE_HOME=$work/cache
unset KUBEBUILDER_ASSETS CARGO_TARGET_DIR MAKEFLAGS MAKELEVEL
mkdir "$XDG_CACHE_HOME"
git clone --quiet "$here/.." "$work/clone"
cd "$work/clone"

row() { printf '| %s | %s |\n' "$1" "$2"; }

# until_ready LOG: prints the seconds until `make run` shows that a sample is Ready, and ends it as Ctrl-C does.
until_ready() {
    local started=$SECONDS
    start_job make run >"$1" 2>&1
    until grep -aqE ' Ready( |$)' "$1"; do
        kill -0 "$job" 2>/dev/null || { tail -n 20 "$1" >&2; fail "make run has ended"; }
        sleep 0.2
    done
    echo $((SECONDS - started))
    kill -INT -- "-$job"
    wait "$job" || true
    job=''
}

# What is built with it takes longer than the second time.
check() {
    local started=$SECONDS
    make check >"$work/check.log" 2>&1 || { tail -n 20 "$work/check.log" >&2; fail "make check fails"; }
    echo $((SECONDS - started))
}

echo "| what, on $(nproc) cores | minutes |"
echo "|---|---|"
row "\`make run\` until a sample is Ready, from an empty clone and cache" "$(clock "$(until_ready "$work/cold.log")")"
sed -n 's/.*==>.* All is built, in \([0-9:]*\): \(.*\)/| of which all that is built: \2 | \1 |/p' "$work/cold.log"
row "the same again" "$(clock "$(until_ready "$work/warm.log")")"
row "\`make check\`, the first time" "$(clock "$(check)")"
row "\`make check\` again" "$(clock "$(check)")"
