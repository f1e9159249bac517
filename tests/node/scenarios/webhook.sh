# shellcheck shell=bash
# Scenarios: the API server asks the host. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

# This API server does not know them, and refuses them in a server-side apply.
without_match_conditions() {
    python3 - "$1" <<'END'
import sys, yaml
values = yaml.safe_load(open(sys.argv[1]))
for webhook in values["webhook"]["webhooks"] + values["webhook"]["defaulting"]:
    del webhook["matchConditions"]
yaml.safe_dump(values, open(sys.argv[1], "w"))
END
}

# Finds the chart and the shims of install_with_the_chart, and the release.
reviews_pass_through_a_rollout() {
    local work=$node/chart sources
    certificate webhook /CN=operator-host-webhook DNS:operator-host-webhook.operator-host.svc
    kubectl -n operator-host create secret generic webhook-certificate --from-file="tls.crt=$node/etc/keys/webhook.crt" \
        --from-file="tls.key=$node/etc/keys/webhook.key" --from-file="ca.crt=$node/etc/keys/ca.crt" >/dev/null
    # All samples, and the webhook.
    cp manifests/deploy/components/webhook/config/config.yaml "$work/config/"
    cp plugins/target/plugins/{echo,hello,myapp,mysql}.wasm "$work/plugins/"
    sources=$(base | kubectl create --dry-run=client --validate=false -f - -o json | jq --compact-output 'select(.kind == "Deployment")
        | .spec.template.spec.volumes[] | select(.name == "plugins") | [.projected.sources[].configMap]')
    (
        cd "$work"
        PATH=$work/bin:$PATH
        command kubectl apply --server-side -f manifests/deploy/base/plugins.yaml
        operator-host rbac --config config/config.yaml -o helm >rights.yaml
        # As webhook.md has it, with a Secret instead of cert-manager.
        operator-host webhook-manifests --config config/config.yaml -o helm >webhook.yaml
        without_match_conditions webhook.yaml
        helm upgrade operator-host manifests/helm --namespace operator-host --reuse-values --set-file config=config/config.yaml \
            -f rights.yaml -f webhook.yaml --set "webhook.from[0].ipBlock.cidr=$node_address/32" \
            --set webhook.certManager=false --set webhook.secretName=webhook-certificate \
            --set "webhook.caBundle=$(base64 --wrap 0 "$node/etc/keys/ca.crt")" \
            --set-json "pluginConfigMaps=$sources"
    ) >"$node/log/webhook" 2>&1 || fail "the webhook cannot be installed with the chart" "$(tail -n 20 "$node/log/webhook")"
    until_true 180 "the host with the webhook is Ready" rolled_out
    until_true 60 "the API server asks the host" traffic review /
    restart_host_under review || fail "reviews failed while the host was replaced" "$(<"$node/log/review")"
    figure "a rolling update under ten reviews a second: $(<"$node/log/review")"
    until_samples_are_ready
    kubectl delete validatingwebhookconfiguration,mutatingwebhookconfiguration operator-host --ignore-not-found >/dev/null
}
