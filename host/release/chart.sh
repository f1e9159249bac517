#!/usr/bin/env bash
# Packages the Helm chart, and pushes it when a registry is given: host/release/chart.sh FOLDER [oci://REGISTRY/PATH]
#
# HELM names another program than `helm`, and HELM_PUSH more arguments of `helm push`.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(host/release/version.sh)
"${HELM:-helm}" package manifests/helm --destination "$folder" >&2
chart=$folder/operator-host-$version.tgz
[[ -f $chart ]]
if [[ $# -gt 1 ]]; then
    # Separate arguments.
    # shellcheck disable=SC2086
    "${HELM:-helm}" push "$chart" "$2" ${HELM_PUSH:-} >&2
fi
echo "$chart"
