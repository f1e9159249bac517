# shellcheck shell=bash
# Scenarios: the host comes, by the manifests and by the chart, and goes. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

# Prints the manifests of the base, for this API server: before 1.21 it has `policy/v1beta1`.
base() { kubectl kustomize manifests/deploy/base | sed 's|^apiVersion: policy/v1$|apiVersion: policy/v1beta1|'; }

apply_base() {
    local started
    started=$(now)
    base | apply --server-side
    until_true 300 "the host is Ready" rolled_out
    figure "the host is Ready after $(milliseconds_since "$started") ms"
}

install_with_kustomize() {
    # Each file of its own: kubectl reads no separator where there is none.
    sed 's/^apiVersion: apiextensions/---\n&/' manifests/crds/*.yaml | apply
    OPERATOR_HOST=$host manifests/deploy/plugins.sh
    apply_base
}

the_pods_keep_to_the_restricted_profile() {
    local violations process line
    kubectl get namespace operator-host -o jsonpath='{.metadata.labels.pod-security\.kubernetes\.io/enforce}' | grep -qx restricted ||
        fail "the namespace does not ask for the profile restricted"
    # Kubernetes 1.20 has no admission for it, so the rules are looked up here.
    violations=$(kubectl -n operator-host get pods -l "$labels" -o json | jq --raw-output --from-file tests/node/restricted.jq)
    [[ -z $violations ]] || fail "pods of the host are outside of the profile restricted" "$violations"
    jq --null-input '{items: [{metadata: {name: "a"}, spec: {containers: [{name: "b"}]}}]}' | jq --raw-output --from-file tests/node/restricted.jq |
        grep -q 'runAsNonRoot' || fail "tests/node/restricted.jq finds nothing"
    # What came of it.
    process=$(containers tasks list | awk -v id="$(container operator-host "$(leader)")" '$1 == id { print $2 }')
    in_node cat "/proc/$process/status" >"$node/status"
    for line in 'Uid:.65532.65532' 'CapBnd:.0*$' 'NoNewPrivs:.1' 'Seccomp:.2'; do
        grep -q "^$line" "$node/status" || fail "the process of the host has more rights than it should: not $line" "$(<"$node/status")"
    done
}

nobody_leads() { ! leads; }
namespace_is_gone() { kubectl wait --for=delete namespace/operator-host --timeout=1s; }

# uninstall COMMAND...: as the page says, and then the command removes what was installed.
uninstall() {
    local config=manifests/deploy/base/config/config.yaml
    in_network "$host" uninstall --config $config --dry-run 2>&1 | grep -q 'warning: a running host' ||
        fail "the dry run does not warn of the running host"
    ! in_network "$host" uninstall --config $config >"$node/log/uninstall" 2>&1 || fail "a running host is no reason to refuse"
    kubectl -n operator-host scale deployment operator-host --replicas=0 >/dev/null
    until_true 60 "the Lease is released" nobody_leads
    in_network "$host" uninstall --config $config >"$node/log/uninstall"
    "$@" >/dev/null
    kubectl delete namespace operator-host --wait=false --ignore-not-found >/dev/null
    until_true 120 "the namespace is gone" namespace_is_gone
}
delete_base() { base | kubectl delete -f - --wait=false; }

uninstall_and_install_again() {
    local before
    before=$(uids)
    uninstall delete_base
    apply_base
    until_samples_are_ready
    same_uids "$before"
}

# The commands in the README of the chart, as they are there. `helm` is Helm's own engine (tests/helm.sh), `kubectl` that of
# the node.
install_with_the_chart() {
    local work=$node/chart before
    before=$(uids)
    uninstall delete_base
    mkdir -p "$work/bin" "$work/plugins/target"
    cp --recursive --dereference manifests "$work/"
    ln -s "$PWD/plugins/target/plugins" "$work/plugins/target/plugins"
    # This API server is older than the chart asks for: it lacks policy/v1, and knows no rules in definitions.
    sed -i 's/^kubeVersion:/# &/' "$work/manifests/helm/Chart.yaml"
    sed -i 's|policy/v1$|policy/v1beta1|' "$work/manifests/helm/templates/"*.yaml
    kubectl create --dry-run=client --validate=false -o json -f manifests/helm/crds/externals.operator-host.dev.yaml |
        jq 'del(.. | objects | ."x-kubernetes-validations")' >"$work/manifests/helm/crds/externals.operator-host.dev.yaml"
    cat >"$work/endpoints.yaml" <<'END'
leadership: single
endpoints:
  - {name: shop, url: "https://shop.example.com", methods: [PUT, DELETE], namespaces: [default]}
END
    ln -s "$host" "$work/bin/operator-host"
    printf '#!/bin/sh\nexec nsenter --target %s --net python3 "%s/tests/node/helm.py" "$@"\n' "$first" "$PWD" >"$work/bin/helm"
    printf '#!/bin/sh\nexec nsenter --target %s --net "%s" "$@"\n' "$first" "$(type -P kubectl)" >"$work/bin/kubectl"
    chmod +x "$work/bin/"*
    awk '/^ *```sh$/ { block = 1; next } /^ *```$/ { block = 0 } block { sub(/^   /, ""); print }' manifests/helm/README.md >"$work/commands"
    (cd "$work" && PATH=$work/bin:$PATH bash -euo pipefail commands) >"$node/log/chart" 2>&1 ||
        fail "the commands in the chart's README do not work" "$(tail -n 20 "$node/log/chart")"
    until_true 180 "the host of the chart is Ready" rolled_out
    until_true 120 "egress of the chart is available" egress_is_available
    until_true 60 "hello-echo is Ready" is_ready echo/hello-echo
    kubectl scale echo hello-echo --replicas=2 >/dev/null 2>&1 || kubectl patch echo hello-echo --type=merge -p '{"spec":{"replicas":2}}' >/dev/null
    until_true 60 "the host of the chart removes a pod" pod_is_gone hello-echo-pod-2
    same_uids "$before"
}
egress_is_available() {
    kubectl --namespace operator-host wait --for=condition=Available deployment/operator-host-egress --timeout=1s
}
pod_is_gone() { kubectl wait --for=delete "pod/$1" --timeout=1s; }
