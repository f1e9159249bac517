#!/usr/bin/env bash
# Prints the command that compiles AssemblyScript, with json-as and the library for WASI: packages of npm, in the user's
# cache folder. ASC=command forces one.
set -euo pipefail
# shellcheck source=plugins/fetch.sh
source "$(dirname "${BASH_SOURCE[0]}")/fetch.sh"

# All of them, so that each is of one version.
packages=(assemblyscript@0.28.20 binaryen@131.0.0-nightly.20260721 long@5.3.2 json-as@1.6.0 xjb-as@0.1.0
    @assemblyscript/wasi-shim@0.1.0)

# The compiler takes paths of libraries relative to the folder that it is started in, also if they are absolute. The rest
# is the configuration of wasi-shim.
write_compiler() {
    install_npm "$1" "${packages[@]}"
    cat >"$1/asc" <<'PROGRAM'
#!/usr/bin/env bash
set -euo pipefail
modules=$(cd "$(dirname "${BASH_SOURCE[0]}")/node_modules" && pwd)
options=(--transform "$modules/json-as/transform/lib/index.js" --exportStart _start --use ASC_WASI=1)
options+=(--path "$(realpath --relative-to . "$modules")")
options+=(--lib "$(realpath --relative-to . "$modules/@assemblyscript/wasi-shim/assembly")")
for name in abort trace seed console crypto performance process Date; do
    options+=(--use "$name=wasi_$name")
done
exec "${NODE:-node}" "$modules/assemblyscript/bin/asc.js" "${options[@]}" "$@"
PROGRAM
    chmod +x "$1/asc"
}

if [[ -n ${ASC:-} ]]; then
    echo "$ASC"
    exit
fi
folder=$(in_cache "assemblyscript/0.28.20" write_compiler)
echo "env NODE=$("$plugins/node.sh") $folder/asc"
