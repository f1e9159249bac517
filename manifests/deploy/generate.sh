#!/usr/bin/env bash
# Writes what follows from base/config/config.yaml anew, with the program given: the roles, and in overlays/webhook the
# configuration and the webhooks. The sample plugins must be built.
set -euo pipefail

program=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Where the pod has them: the plugins beside the configuration.
mkdir "$work/config"
ln -s "$(realpath ../../plugins/target/plugins)" "$work/plugins"
config=$work/config/config.yaml

cp base/config/config.yaml "$config"
"$program" rbac --config "$config" >"$work/rbac.yaml"

{
    echo "# The base's configuration and a webhook; generate.sh writes it anew."
    cat base/config/config.yaml
    cat <<'END'

webhook:
  certificate: ../webhook/tls.crt
  key: ../webhook/tls.key
END
} >"$config"
"$program" webhook-manifests --config "$config" --service operator-host/operator-host-webhook >"$work/webhooks.yaml"

mv "$work/rbac.yaml" base/rbac.yaml
mv "$work/webhooks.yaml" overlays/webhook/webhooks.yaml
mv "$config" overlays/webhook/config/config.yaml
