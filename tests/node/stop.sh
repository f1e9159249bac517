#!/usr/bin/env bash
# Ends a node that was kept: stop.sh FOLDER.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/../control-plane/lib.sh"
# shellcheck source=tests/node/node.sh
source "$here/node.sh"
[[ -f ${1:?the folder of the node}/processes ]] || fail "$1 is not the folder of a node"
node=$(realpath "$1")
network=node-${node##*.}
read -r holder first <"$node/processes"
# After a restart of the machine they are others.
grep -qF "$node/stand-in" "/proc/$first/cmdline" 2>/dev/null || holder=''
stop_node
