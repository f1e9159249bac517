#!/usr/bin/env bash
# Packs the plugins of the deployed configuration as ConfigMaps: manifests/deploy/base/plugins.yaml. They are built before,
# by plugins/build.sh; OPERATOR_HOST names the program, when it is not the one that is built here. A link, base/plugins,
# lets `operator-host rbac` read the configuration where it lies.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
program=${OPERATOR_HOST:-${CARGO_TARGET_DIR:-target}/debug/operator-host}
files=()
while read -r name; do
    files+=("plugins/target/plugins/$name")
done < <(sed -n 's/^ *plugin: *//p' manifests/deploy/base/config/config.yaml)
for file in "${files[@]}"; do
    [[ -f $file ]] || { echo "there is no $file: run plugins/build.sh" >&2; exit 1; }
done
ln -sfn ../../../plugins/target/plugins manifests/deploy/base/plugins
"$program" pack --namespace operator-host "${files[@]}" >manifests/deploy/base/plugins.yaml.new
mv manifests/deploy/base/plugins.yaml.new manifests/deploy/base/plugins.yaml
