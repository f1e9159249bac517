# shellcheck shell=bash
# Scenarios: other versions of a plugin, and another configuration. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

# Echo in the answer of a replica: echo_is POD CONDITION, in the words of jq.
echo_is() { answer "$1" /plugins | tee /dev/stderr | jq --exit-status ".. | objects | select(.controller? == \"echo\") | $2" >/dev/null; }
runs() { echo_is "$1" "(.live.digest // \"\") | contains(\"$2\")"; }
puts_aside() { echo_is "$1" ".candidate.digest // \"\" | contains(\"$2\")"; }

# digest FILE: the beginning of it.
digest() { sha256sum <"$1" | head -c 12; }

# deliver FILE: applies it as echo.wasm.
deliver() {
    mkdir -p "$node/delivered"
    cp "$1" "$node/delivered/echo.wasm"
    "$host" pack --namespace operator-host "$node/delivered/echo.wasm" | apply --server-side --force-conflicts
}

# version WORDS: makes a version of Echo that differs in a custom section only, which changes nothing that it does, and prints
# its file.
version() {
    python3 - plugins/target/plugins/echo.wasm "$node/echo-$1.wasm" "$1" <<'END'
import sys
source, target, words = sys.argv[1:]
section = bytes([len("note")]) + b"note" + words.encode()
open(target, "wb").write(open(source, "rb").read() + bytes([0, len(section)]) + section)
END
    echo "$node/echo-$1.wasm"
}

# spread NUMBER...: the median of them, the least and the greatest.
spread() { printf '%s\n' "$@" | sort --numeric | awk '{ n[NR] = $1 } END { printf "%d ms (%d to %d)", n[int((NR + 1) / 2)], n[1], n[NR] }'; }

# measure_delivery COMMAND: how long a ConfigMap takes to each replica, when the command follows its change.
measure_delivery() {
    local file pod started round
    times=()
    for round in 1 2 3; do
        file=$(version "$1-$round")
        started=$(now)
        deliver "$file"
        "$1"
        for pod in $(host_pods); do
            until_true 150 "$pod runs the new version of Echo" runs "$pod" "$(digest "$file")"
            times+=("$(milliseconds_since "$started")")
        done
    done
}

a_plugin_goes_from_its_config_map_to_every_replica() {
    local times
    measure_delivery look_at_once
    figure "a ConfigMap is live in both replicas $(spread "${times[@]}") after it was applied and the pods were annotated, ${#times[@]} times"
    measure_delivery true
    figure "a ConfigMap is live in both replicas $(spread "${times[@]}") after it was applied, ${#times[@]} times"
}

is_held_back() { leads && puts_aside "$(leader)" "$1"; }

a_rollout_while_a_version_is_held_back_deletes_nothing() {
    local before broken
    before=$(uids pods,services,deployments,persistentvolumeclaims,secrets)
    plugins/try.sh broken >"$node/log/broken" 2>&1
    cp plugins/target/plugins/echo.wasm "$node/broken.wasm"
    plugins/try.sh original >>"$node/log/broken" 2>&1
    broken=$(digest "$node/broken.wasm")
    deliver "$node/broken.wasm"
    look_at_once
    until_true 120 "the broken version is held back" is_held_back "$broken"
    restart_host
    until_true 60 "a new replica leads, and holds the version back" is_held_back "$broken"
    same_uids "$before" pods,services,deployments,persistentvolumeclaims,secrets
    deliver plugins/target/plugins/echo.wasm
    look_at_once
    until_true 120 "the version before is live again" runs "$(leader)" "$(digest plugins/target/plugins/echo.wasm)"
}

a_pinned_version_is_live_until_it_is_released() {
    local pod before old new started file
    before=$(uids pods,services,deployments,persistentvolumeclaims,secrets)
    file=$(version new)
    old=$(digest plugins/target/plugins/echo.wasm) new=$(digest "$file")
    for pod in $(host_pods); do
        until_true 120 "$pod runs the old version" runs "$pod" "$old"
    done
    deliver "$file"
    look_at_once
    for pod in $(host_pods); do
        until_true 120 "$pod runs the new version" runs "$pod" "$new"
    done
    started=$(now)
    kubectl annotate crd echoes.my-operator.dev "operator-host.dev/pin=$old" --overwrite >/dev/null
    for pod in $(host_pods); do
        until_true 60 "$pod runs the version that is pinned" runs "$pod" "$old"
        until_true 60 "$pod puts the version of the file aside" puts_aside "$pod" "$new"
    done
    figure "both replicas are rolled back $(milliseconds_since "$started") ms after a pin"
    kubectl -n operator-host exec "$(leader)" -- operator-host plugins >"$node/log/plugins" ||
        fail "the documented command does not work in the pod" "$(<"$node/log/plugins")"
    grep -q "$old" "$node/log/plugins" || fail "it does not name the version that is live" "$(<"$node/log/plugins")"
    kubectl annotate crd echoes.my-operator.dev operator-host.dev/pin- >/dev/null
    for pod in $(host_pods); do
        until_true 120 "$pod runs the version of the file again" runs "$pod" "$new"
    done
    same_uids "$before" pods,services,deployments,persistentvolumeclaims,secrets
}

# configure FILE
configure() {
    kubectl -n operator-host create configmap operator-host-config --from-file="config.yaml=$1" --dry-run=client -o yaml |
        apply --server-side --force-conflicts
    look_at_once
}
controllers() { answer "$1" /plugins | jq --raw-output '.. | objects | .controller? // empty' | sort | tr '\n' ' '; }
has_controllers() { [[ $(controllers "$1" | tee /dev/stderr) == "$2" ]]; }

a_changed_configuration_is_a_reload() {
    local before pod started times=() hosts
    hosts=$(host_pods | sort)
    before=$(uids pods,services,deployments,persistentvolumeclaims,secrets)
    # Hello is the last one.
    sed '/^  - name: hello$/,$d' manifests/deploy/base/config/config.yaml >"$node/config.yaml"
    started=$(now)
    configure "$node/config.yaml"
    for pod in $hosts; do
        until_true 120 "$pod runs the controllers of the new configuration" has_controllers "$pod" "echo myapp mysql "
        times+=("$(milliseconds_since "$started")")
    done
    configure manifests/deploy/base/config/config.yaml
    for pod in $hosts; do
        until_true 120 "$pod runs all controllers again" has_controllers "$pod" "echo hello myapp mysql "
    done
    figure "a configuration is in effect in both replicas $(spread "${times[@]}") after it was applied and the pods were annotated"
    [[ $(host_pods | sort) == "$hosts" ]] || fail "the pods of the host are others"
    same_uids "$before" pods,services,deployments,persistentvolumeclaims,secrets
    until_samples_are_ready
}
