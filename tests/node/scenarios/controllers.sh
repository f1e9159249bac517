# shellcheck shell=bash
# Scenarios: operators that are objects of the cluster. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

# The containers of the host: others, or started again, show. Those of pods that are going do not count.
host_containers() {
    kubectl -n operator-host get pods -l "$labels" -o json |
        jq --raw-output '.items[] | select(.metadata.deletionTimestamp == null) | "\(.metadata.uid) \(.status.containerStatuses[0] | "\(.containerID) \(.restartCount)")"' | sort
}
is_gone() { kubectl wait --for=delete "$1" --timeout=1s; }
job_exists() { kubectl get jobs -l operator-host.dev/controller=cron -o name | grep .; }
is_listed() { kubectl get controllers.operator-host.dev | tee /dev/stderr | grep -Eq '^cron +True +Cron +cron +0.1.0 +False +1 '; }

# As controllers.md has it: ceilings and permissions once, and then two commands of a team.
another_operator_comes_with_one_apply() {
    local hosts work=$node/controllers started controller=controllers.operator-host.dev/cron
    mkdir -p "$work/config"
    ln -s "$PWD/plugins/target/plugins" "$work/plugins"
    cat manifests/deploy/base/config/config.yaml - >"$work/config/config.yaml" <<'END'
ceilings:
- parents: [{apiGroups: [time.example.com], kinds: [Cron]}]
  children: [{apiGroups: [batch], kinds: [Job]}]
END
    hosts=$(host_containers)
    "$host" schema controller | apply
    "$host" rbac --config "$work/config/config.yaml" --crd plugins/cron/crd.json | apply
    configure "$work/config/config.yaml"

    "$host" crd plugins/target/plugins/cron.wasm | apply
    started=$(now)
    "$host" pack --controller -n operator-host plugins/target/plugins/cron.wasm | apply --server-side
    until_true 120 "the Controller is Ready" is_ready "$controller"
    figure "an operator that was added with one apply is Ready after $(milliseconds_since "$started") ms"
    apply <<'END'
apiVersion: time.example.com/v1
kind: Cron
metadata: {name: minutely, namespace: default}
spec: {schedule: "* * * * *", image: "nginx:1.27"}
END
    until_true 100 "the Cron has a Job" job_exists
    until_true 10 "kubectl shows how the operator is" is_listed

    kubectl delete cron minutely --timeout=60s >/dev/null
    kubectl delete "$controller" --wait=false >/dev/null
    until_true 60 "the Controller is gone" is_gone "$controller"
    kubectl delete crd crons.time.example.com --timeout=60s >/dev/null
    kubectl -n operator-host delete configmap cron-plugin >/dev/null
    configure manifests/deploy/base/config/config.yaml
    apply <manifests/deploy/base/rbac.yaml
    [[ $(host_containers) == "$hosts" ]] ||
        fail "the host's pods were replaced or started again" "$(diff <(echo "$hosts") <(host_containers))"
    until_samples_are_ready
}
