# shellcheck shell=bash
# Scenarios: the replicas of the host end, move and start again. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

# scale NUMBER: the pods of hello-echo, and waits for the last one that is wanted, or that is not.
scale_echo() { kubectl patch echo hello-echo --type=merge -p "{\"spec\":{\"replicas\":$1}}" >/dev/null; }
pod_exists() { kubectl get pod "$1"; }

another_replica_takes_over_when_the_leader_is_killed() {
    local old started round times=()
    for round in 3 4 5; do
        old=$(leader)
        started=$(now)
        kill_container operator-host "$old"
        scale_echo $((round + 1))
        until_true 60 "a pod that was asked for after the death of the leader" pod_exists "hello-echo-pod-$round"
        times+=("$(milliseconds_since "$started")")
        until_true 60 "another replica leads" leads_other_than "$old"
        until_true 180 "both replicas are Ready" rolled_out
    done
    figure "the next write came $(spread "${times[@]}") after kill -9 of the leader, ${#times[@]} times"
    scale_echo 3
    until_true 60 "the pods that are no longer wanted are gone" pod_is_gone hello-echo-pod-3
}

traffic() { in_network python3 tests/node/traffic.py "$@"; }
# restart_host_under TRAFFIC: while it goes on, from before to after.
restart_host_under() {
    local pid
    rm -f "$node/replaced"
    traffic "$1" "$node/replaced" >"$node/log/$1" 2>&1 &
    pid=$!
    restart_host
    touch "$node/replaced"
    wait "$pid"
}
has_port() { [[ $(kubectl get service beat -o jsonpath='{.spec.ports[0].port}' | tee /dev/stderr) == "$1" ]]; }

a_rolling_update_keeps_pace_with_four_changes_a_second() {
    local since last verdict
    apply <<'END'
apiVersion: example.com/v1
kind: MyApp
metadata: {name: beat, namespace: default}
spec: {image: "nginx:1.27", port: 1000}
END
    until_true 60 "beat is Ready" is_ready myapp/beat
    # What is changed needs no pods.
    kubectl rollout pause deployment/beat >/dev/null
    since=$(date --utc +%FT%T.%6NZ)
    restart_host_under change || fail "the changes were refused" "$(<"$node/log/change")"
    last=$(<"$node/log/change")
    until_true 30 "the last change is in the Service" has_port "$last"
    verdict=$(python3 tests/node/traffic.py judge "$node/log/audit" "$since")
    echo "$verdict" >"$node/log/verdict"
    jq --exit-status '.writers == 2 or .writers == 3' <<<"$verdict" >/dev/null || fail "no replica gave the writes to another" "$verdict"
    jq --exit-status '.writes_after_a_successor == 0 and .older_writes == 0' <<<"$verdict" >/dev/null ||
        fail "two replicas wrote, or something newer was undone" "$verdict"
    figure "a rolling update under four changes a second: $(jq --raw-output '"\(.changes) changes, \(.writes) writes by \(.writers) replicas, \(.repeated_writes) of them repeated, none older; from a change to its write \(.median_ms) ms (at most \(.longest_ms) ms); the longest gap between writes \(.longest_gap_ms) ms"' <<<"$verdict")"
    kubectl delete myapp beat --timeout=60s >/dev/null
}

running_hosts() { host_pods | wc -l; }
a_drain_leaves_one_replica() {
    local log=$node/log/drain
    ! kubectl drain node-1 --ignore-daemonsets --timeout=5s >"$log" 2>&1 || fail "a drain without --delete-emptydir-data works"
    grep -q 'delete-emptydir-data\|delete-local-data' "$log" || fail "the drain says something else" "$(<"$log")"
    # There is no other node, so what is evicted waits, and the PodDisruptionBudget keeps the last replica.
    ! kubectl drain node-1 --ignore-daemonsets --delete-emptydir-data --timeout=40s >"$log" 2>&1 ||
        fail "the drain evicts both replicas at the same time" "$(<"$log")"
    grep -q "violate the pod's disruption budget" "$log" || fail "the drain does not fail by the PodDisruptionBudget" "$(<"$log")"
    [[ $(running_hosts) == 1 ]] || fail "not one replica is left" "$(kubectl -n operator-host get pods)"
    leader | grep -qxF "$(host_pods)" || fail "the replica that is left does not lead"
    kubectl uncordon node-1 >/dev/null
    until_true 180 "both replicas are Ready" rolled_out
    until_samples_are_ready
}

# token POD: the one that the kubelet has put into it.
token() {
    # The node's shell expands it.
    # shellcheck disable=SC2016
    in_node sh -c 'cat "$0"/kubernetes.io~projected/kube-api-access-*/token' \
        "$node/kubelet/pods/$(kubectl -n operator-host get pod "$1" -o jsonpath='{.metadata.uid}')/volumes"
}
has_another_token() { [[ $(token "$1") != "$2" ]]; }
restarts() { kubectl -n operator-host get pods -l "$labels" -o jsonpath='{range .items[*]}{.metadata.name} {.status.containerStatuses[0].restartCount}{"\n"}{end}' | sort; }

every_token_is_exchanged() {
    local pod started before
    local -A old
    before=$(restarts)
    for pod in $(host_pods); do
        old[$pod]=$(token "$pod")
    done
    openssl genrsa -out "$node/etc/keys/accounts-2.key" 2048 2>/dev/null
    trusted_keys+=(accounts-2.key)
    stop apiserver
    start_apiserver
    # It has the tokens in its memory otherwise, until four fifths of their time are over.
    stop kubelet
    start_kubelet
    for pod in "${!old[@]}"; do
        until_true 180 "$pod has a token that the new key has signed" has_another_token "$pod" "${old[$pod]}"
    done
    trusted_keys=(accounts-2.key)
    stop apiserver
    start_apiserver
    started=$(now)
    stop controller-manager
    start_controller_manager
    ! kubectl --kubeconfig=/dev/null --server="https://$node_address:6443" --certificate-authority="$node/etc/keys/ca.crt" \
        --token="${old[$(host_pods | head -n 1)]}" get --raw /api 2>"$node/log/token" || fail "the old token is still accepted"
    scale_echo 4
    until_true 120 "a pod that was asked for when the old tokens had become void" pod_exists hello-echo-pod-3
    figure "the next write came $(milliseconds_since "$started") ms after the old tokens had become void"
    until_true 120 "both replicas are Ready" rolled_out
    scale_echo 3
    until_true 120 "the pod that is no longer wanted is gone" pod_is_gone hello-echo-pod-3
    [[ $(restarts) == "$before" ]] || fail "a container has ended because of the tokens" "$(diff <(echo "$before") <(restarts))"
}

# all_started_since TIME: every container, and is ready.
all_started_since() {
    kubectl get pods --all-namespaces -o json | jq --exit-status --arg since "$1" \
        '[.items[].status.containerStatuses // [{}] | .[] | .ready and .state.running.startedAt >= $since] | all' >/dev/null
}

all_is_as_before_when_the_power_comes_back() {
    local before started since
    before=$(uids pods,services,deployments,persistentvolumeclaims,secrets)
    power_off
    since=$(date --utc +%FT%TZ)
    started=$(now)
    power_on
    start_containerd
    start_cluster
    until_true 240 "every container runs again" all_started_since "$since"
    figure "every container runs again $(milliseconds_since "$started") ms after the power came back"
    until_true 120 "both replicas are Ready" rolled_out
    until_samples_are_ready
    until_true 60 "the database has its data" has_the_order "$(password)"
    same_uids "$before" pods,services,deployments,persistentvolumeclaims,secrets
    scale_echo 4
    until_true 60 "the host writes again" pod_exists hello-echo-pod-3
    scale_echo 3
    until_true 60 "the pod that is no longer wanted is gone" pod_is_gone hello-echo-pod-3
}
