#!/usr/bin/env bash
# Prints the command that makes a component of JavaScript with its engine, QuickJS: the npm package `componentize-qjs`, in
# the user's cache folder. COMPONENTIZE=command forces one.
set -euo pipefail
# shellcheck source=plugins/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

version=0.4.5

if [[ -n ${COMPONENTIZE:-} ]]; then
    echo "$COMPONENTIZE"
    exit
fi
folder=$(in_cache "componentize-qjs/$version" install_npm "componentize-qjs@$version")
echo "$("$plugins/node.sh") $folder/node_modules/componentize-qjs/cli.mjs"
