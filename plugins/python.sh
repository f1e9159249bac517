#!/usr/bin/env bash
# Prints the command that makes a component of Python with its interpreter: the package `componentize-py` of PyPI, in the
# user's cache folder. COMPONENTIZE=command forces one.
set -euo pipefail
# shellcheck source=plugins/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

version=0.25.1

# With a program as pip would write it.
unpack_componentize() {
    unpack_wheel "$1" "componentize-py==$version"
    cat >"$1/componentize-py" <<'PROGRAM'
#!/usr/bin/env python3
import os
import sys
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
from componentize_py import script
sys.exit(script())
PROGRAM
    chmod +x "$1/componentize-py"
}

if [[ -n ${COMPONENTIZE:-} ]]; then
    echo "$COMPONENTIZE"
    exit
fi
echo "$(in_cache "componentize-py/$version" unpack_componentize)/componentize-py"
