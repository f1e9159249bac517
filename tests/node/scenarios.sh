# shellcheck shell=bash
# What is tried on the node, in this order, and what the scenarios share. Each finds what the ones before it left. Sourced after
# images.sh, never run.
# shellcheck disable=SC2154,SC2034

scenarios=(
    install_with_kustomize
    the_pods_keep_to_the_restricted_profile
    the_samples_are_ready
    ready_follows_the_kubelet
    a_database_keeps_its_password_and_its_data
    a_plugin_goes_from_its_config_map_to_every_replica
    a_rollout_while_a_version_is_held_back_deletes_nothing
    a_pinned_version_is_live_until_it_is_released
    a_changed_configuration_is_a_reload
    another_operator_comes_with_one_apply
    another_replica_takes_over_when_the_leader_is_killed
    a_rolling_update_keeps_pace_with_four_changes_a_second
    a_drain_leaves_one_replica
    every_token_is_exchanged
    all_is_as_before_when_the_power_comes_back
    uninstall_and_install_again
    install_with_the_chart
    reviews_pass_through_a_rollout
)

samples=(echo/hello-echo hello/hello myapp/hello-app mysqlcluster/shop-db)
labels=app.kubernetes.io/name=operator-host

# figure WORDS: is printed at the end.
figure() {
    figures+=("$*")
    printf '    %s\n' "$*" >&2
}

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
milliseconds_since() { echo $(($(now) - $1)); }

# apply OPTION...: the manifests of standard input. A kubectl of 1.20 knows no rules in definitions.
apply() { kubectl apply --validate=false "$@" -f - >/dev/null; }

# Asks the host in a pod: answer POD PATH.
answer() { kubectl get --raw "/api/v1/namespaces/operator-host/pods/$1:8080/proxy$2"; }
# The pods of the host that run and are to stay.
host_pods() {
    kubectl -n operator-host get pods -l "$labels" -o json |
        jq --raw-output '.items[] | select(.status.phase == "Running" and .metadata.deletionTimestamp == null) | .metadata.name'
}
leader() { kubectl -n operator-host get lease operator-host -o jsonpath='{.spec.holderIdentity}' | sed 's/_.*//'; }
leads() { leader | grep -q .; }
# leads_other_than POD
leads_other_than() { leader | grep -v "^$1\$" | grep -q .; }

# container NAMESPACE POD: the id of its only container.
container() { kubectl -n "$1" get pod "$2" -o jsonpath='{.status.containerStatuses[0].containerID}' | sed 's|containerd://||'; }
# As kill -9 of the process.
kill_container() { containers tasks kill --signal KILL "$(container "$@")"; }

rolled_out() { kubectl -n operator-host rollout status deployment/operator-host --timeout=1s && leads; }
restart_host() {
    kubectl -n operator-host rollout restart deployment/operator-host >/dev/null
    until_true 180 "the rolling update is complete" rolled_out
}
# Makes the kubelet look at once for what is mounted.
look_at_once() { kubectl -n operator-host annotate pods -l "$labels" "example.com/looked=$(now)" --overwrite >/dev/null; }

is_ready() { kubectl wait --for=condition=Ready "$1" --timeout=1s; }
until_samples_are_ready() {
    local sample
    for sample in "${samples[@]}"; do
        until_true 180 "$sample is Ready" is_ready "$sample"
    done
}

# What the host has made, but pods, which others may replace: what was deleted or replaced shows.
uids() {
    kubectl get "${1:-services,deployments,persistentvolumeclaims,secrets}" -l operator-host.dev/controller \
        -o jsonpath='{range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{"\n"}{end}' | sort
}
same_uids() { [[ $(uids "${2:-}") == "$1" ]] || fail "children are others than before" "$(diff <(echo "$1") <(uids "${2:-}"))"; }

# shellcheck source=tests/node/scenarios/install.sh
source "$here/scenarios/install.sh"
# shellcheck source=tests/node/scenarios/samples.sh
source "$here/scenarios/samples.sh"
# shellcheck source=tests/node/scenarios/plugins.sh
source "$here/scenarios/plugins.sh"
# shellcheck source=tests/node/scenarios/controllers.sh
source "$here/scenarios/controllers.sh"
# shellcheck source=tests/node/scenarios/replicas.sh
source "$here/scenarios/replicas.sh"
# shellcheck source=tests/node/scenarios/webhook.sh
source "$here/scenarios/webhook.sh"
