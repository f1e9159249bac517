#!/usr/bin/env bash
# Writes again what follows from base/config/config.yaml: the roles, and in components/webhook the configuration, the
# webhooks, and the definitions of kinds that the host converts.
#
#   generate.sh PROGRAM [FOLDER [DEFINITIONS...]]
#
# PROGRAM is operator-host, FOLDER has the plugins: those that plugins/build.sh has built, when none is given. DEFINITIONS are files
# with CustomResourceDefinitions that no plugin contains, such as those of kinds that `ceilings` name.
set -euo pipefail

program=$(realpath "$1")
plugins=$(realpath "${2:-$(dirname "${BASH_SOURCE[0]}")/../../plugins/target/plugins}")
crds=()
for definitions in "${@:3}"; do
    crds+=(--crd "$(realpath "$definitions")")
done
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Where the pod has them: the plugins beside the configuration.
mkdir "$work/config"
ln -s "$plugins" "$work/plugins"
config=$work/config/config.yaml

cp base/config/config.yaml "$config"
"$program" rbac --config "$config" "${crds[@]}" >"$work/rbac.yaml"

{
    echo "# ../../../base/config/config.yaml and a webhook: generate.sh writes it anew, so change that one."
    sed '/^#/d' base/config/config.yaml
    cat <<'END'

webhook:
  service: operator-host/operator-host-webhook
  certificateAuthority: ../webhook/ca.crt
  certificate: ../webhook/tls.crt
  key: ../webhook/tls.key
END
} >"$config"
service=operator-host/operator-host-webhook
"$program" webhook-manifests --config "$config" --service "$service" --no-definitions >"$work/webhooks.yaml"
{
    echo "# The definitions of kinds with several versions, which the host converts. They are not part of the component, because"
    echo "# \`kubectl delete -k\` would delete them, and with them all their resources."
    for plugin in "$plugins"/*.wasm; do
        # Refused for a plugin with one version of its kind.
        if definition=$("$program" crd "$plugin" --service "$service" --inject-ca-from "$service" 2>/dev/null); then
            printf -- '---\n%s\n' "$definition"
        fi
    done
} >"$work/definitions.yaml"

"$program" rbac --endpoints components/egress/config/endpoints.yaml >"$work/egress.yaml"

mv "$work/rbac.yaml" base/rbac.yaml
mv "$work/egress.yaml" components/egress/rbac.yaml
mv "$work/webhooks.yaml" components/webhook/webhooks.yaml
mv "$work/definitions.yaml" components/webhook/definitions.yaml
mv "$config" components/webhook/config/config.yaml
