# shellcheck shell=bash
# What is tried on the node, in this order. Each scenario finds what the ones before it left. Sourced after images.sh, never run.
# shellcheck disable=SC2154,SC2034

scenarios=(
    install_with_kustomize
    the_samples_are_ready
    ready_follows_the_kubelet
    a_plugin_goes_from_its_config_map_to_every_replica
    a_rollout_while_a_version_is_held_back_deletes_nothing
    another_replica_takes_over_when_the_leader_is_killed
    a_drain_leaves_the_node
    uninstall_and_install_again
)

samples=(echo/hello-echo hello/hello myapp/hello-app mysqlcluster/shop-db)
host=${PROGRAM:-target/debug/operator-host}
labels=app.kubernetes.io/name=operator-host

# figure WORDS: is printed at the end.
figure() {
    figures+=("$*")
    printf '    %s\n' "$*" >&2
}

milliseconds_since() { echo $((${EPOCHREALTIME/[.,]/} / 1000 - $1)); }
now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# Prints the manifests of the base, for this API server: before 1.21 it has `policy/v1beta1`.
base() { kubectl kustomize manifests/deploy/base | sed 's|^apiVersion: policy/v1$|apiVersion: policy/v1beta1|'; }

# apply OPTION...: the manifests of standard input. A kubectl of 1.20 knows no rules in definitions.
apply() { kubectl apply --validate=false "$@" -f - >/dev/null; }

# Asks the host in a pod: answer POD PATH.
answer() { kubectl get --raw "/api/v1/namespaces/operator-host/pods/$1:8080/proxy$2"; }
host_pods() { kubectl -n operator-host get pods -l "$labels" --field-selector status.phase=Running -o name | sed 's|.*/||'; }
leader() { kubectl -n operator-host get lease operator-host -o jsonpath='{.spec.holderIdentity}' | sed 's/_.*//'; }
# uids: what the host made, so that what was deleted or replaced shows.
uids() {
    kubectl get pods,services,deployments,persistentvolumeclaims -l operator-host.dev/controller \
        -o jsonpath='{range .items[*]}{.kind} {.metadata.name} {.metadata.uid}{"\n"}{end}' | sort
}

volumes() {
    local number
    for number in 0 1; do
        mkdir -p "$node/volumes/$number"
        cat <<END
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: volume-$number}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: $node/volumes/$number}
END
    done
}

install() {
    local started
    cat manifests/crds/*.yaml | sed 's/^apiVersion: apiextensions/---\n&/' | apply
    base | apply --server-side
    started=$(now)
    kubectl -n operator-host rollout status deployment/operator-host --timeout=300s >/dev/null ||
        fail "the host does not become Ready" "$(kubectl -n operator-host get pods -o wide; kubectl -n operator-host logs -l "$labels" --tail=20)"
    figure "the host is Ready after $(milliseconds_since "$started") ms"
}

install_with_kustomize() {
    OPERATOR_HOST=$host manifests/deploy/plugins.sh
    install
}

the_samples_are_ready() {
    local sample started
    volumes | apply
    started=$(now)
    for sample in "${samples[@]}"; do
        apply <"manifests/samples/${sample%/*}.yaml"
    done
    for sample in "${samples[@]}"; do
        kubectl wait --for=condition=Ready "$sample" --timeout=180s >/dev/null ||
            fail "$sample does not become Ready" "$(kubectl get "$sample" -o yaml; kubectl get pods -o wide)"
    done
    figure "the samples are Ready after $(milliseconds_since "$started") ms"
    kubectl get secret shop-db-root -o jsonpath='{.data.password}' | base64 -d | grep -qE '^.{32}$' ||
        fail "the generated password is not there"
}

# ready_says SAMPLE WORDS
ready_says() { kubectl get "$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].message}' | grep -qF "$2"; }

ready_follows_the_kubelet() {
    local id
    kubectl patch myapp hello-app --type=merge -p '{"spec":{"image":"nginx:absent"}}' >/dev/null
    until_true 60 "the new image of hello-app is not there, and Ready says so" \
        kubectl wait --for=condition=Ready=false myapp/hello-app --timeout=1s
    kubectl patch myapp hello-app --type=merge -p '{"spec":{"image":"nginx:1.27"}}' >/dev/null
    kubectl wait --for=condition=Ready myapp/hello-app --timeout=60s >/dev/null
    # The container of one server ends again and again.
    id=$(kubectl get pod shop-db-0 -o jsonpath='{.status.containerStatuses[0].containerID}')
    containers tasks kill --signal KILL "${id#containerd://}"
    until_true 30 "Ready says how the container has ended" ready_says mysqlcluster/shop-db "container mysql has ended with exit code 137"
    kubectl wait --for=condition=Ready mysqlcluster/shop-db --timeout=120s >/dev/null
}

# has_digest POD DIGEST: the replica's live version of Echo.
has_digest() { answer "$1" /plugins | jq -e --arg digest "$2" '.. | strings | select(contains($digest))' >/dev/null; }

# deliver FILE: applies it as echo.wasm.
deliver() {
    mkdir -p "$node/delivered"
    cp "$1" "$node/delivered/echo.wasm"
    "$host" pack --namespace operator-host "$node/delivered/echo.wasm" | apply --server-side
}

# custom FILE WORDS: a version of Echo that differs in a custom section only, which changes nothing that it does.
custom() {
    python3 - plugins/target/plugins/echo.wasm "$1" "$2" <<'END'
import sys
source, target, words = sys.argv[1:]
section = bytes([len("note")]) + b"note" + words.encode()
open(target, "wb").write(open(source, "rb").read() + bytes([0, len(section)]) + section)
END
}

a_plugin_goes_from_its_config_map_to_every_replica() {
    local pod digest started how
    for how in waits annotated; do
        custom "$node/echo-$how.wasm" "$how"
        digest=$(sha256sum <"$node/echo-$how.wasm")
        digest=${digest:0:12}
        started=$(now)
        deliver "$node/echo-$how.wasm"
        [[ $how == waits ]] || kubectl -n operator-host annotate pods -l "$labels" "example.com/looked=$started" --overwrite >/dev/null
        for pod in $(host_pods); do
            until_true 150 "$pod runs the new version of Echo ($how)" has_digest "$pod" "$digest"
            figure "a ConfigMap is live in ${pod##*-} after $(milliseconds_since "$started") ms ($how)"
        done
    done
}

held_back() { answer "$(leader)" /plugins | grep -qi 'held'; }

a_rollout_while_a_version_is_held_back_deletes_nothing() {
    local before
    before=$(uids)
    plugins/try.sh broken >"$node/log/broken" 2>&1
    cp plugins/target/plugins/echo.wasm "$node/broken.wasm"
    plugins/try.sh original >>"$node/log/broken" 2>&1
    deliver "$node/broken.wasm"
    kubectl -n operator-host annotate pods -l "$labels" "example.com/looked=$(now)" --overwrite >/dev/null
    until_true 120 "the broken version is held back" held_back
    kubectl -n operator-host rollout restart deployment/operator-host >/dev/null
    kubectl -n operator-host rollout status deployment/operator-host --timeout=180s >/dev/null
    until_true 60 "a new replica leads, and holds the version back" held_back
    [[ $(uids) == "$before" ]] || fail "the rollout changed children" "$(diff <(echo "$before") <(uids))"
    deliver plugins/target/plugins/echo.wasm
}

another_replica_takes_over_when_the_leader_is_killed() {
    local old id pid started
    old=$(leader)
    id=$(kubectl -n operator-host get pod "$old" -o jsonpath='{.status.containerStatuses[0].containerID}')
    pid=$(containers tasks list | awk -v id="${id#containerd://}" '$1 == id { print $2 }')
    started=$(now)
    kill -KILL "$pid"
    kubectl patch echo hello-echo --type=merge -p '{"spec":{"replicas":4}}' >/dev/null
    until_true 60 "a pod that was asked for after the death of the leader" kubectl get pod hello-echo-pod-3
    figure "the next write came $(milliseconds_since "$started") ms after kill -9 of the leader"
    kubectl -n operator-host rollout status deployment/operator-host --timeout=120s >/dev/null
}

a_drain_leaves_the_node() {
    # One node: what is evicted waits until it is there again.
    ! kubectl drain node-1 --ignore-daemonsets --timeout=5s >"$node/log/drain" 2>&1 || fail "a drain without --delete-emptydir-data works"
    grep -q 'delete-emptydir-data\|delete-local-data' "$node/log/drain" || fail "the drain says something else" "$(<"$node/log/drain")"
    kubectl drain node-1 --ignore-daemonsets --delete-emptydir-data --disable-eviction --timeout=120s >"$node/log/drain" 2>&1 ||
        fail "the node cannot be drained" "$(tail -n 5 "$node/log/drain")"
    kubectl uncordon node-1 >/dev/null
    kubectl -n operator-host rollout status deployment/operator-host --timeout=180s >/dev/null
    for sample in "${samples[@]}"; do
        kubectl wait --for=condition=Ready "$sample" --timeout=180s >/dev/null || fail "$sample is not Ready after the drain"
    done
}

nobody_leads() { [[ -z $(leader) ]]; }

uninstall_and_install_again() {
    local before
    before=$(uids)
    in_network "$host" uninstall --config manifests/deploy/base/config/config.yaml --dry-run 2>&1 | grep -q 'warning: a running host' ||
        fail "the dry run does not warn of the running host"
    kubectl -n operator-host scale deployment operator-host --replicas=0 >/dev/null
    until_true 60 "the Lease is released" nobody_leads
    in_network "$host" uninstall --config manifests/deploy/base/config/config.yaml >"$node/log/uninstall"
    base | kubectl delete -f - --wait=false >/dev/null
    kubectl wait --for=delete namespace/operator-host --timeout=120s >/dev/null
    install
    for sample in "${samples[@]}"; do
        kubectl wait --for=condition=Ready "$sample" --timeout=180s >/dev/null || fail "$sample is not Ready after the installation"
    done
    [[ $(uids) == "$before" ]] || fail "the children are others" "$(diff <(echo "$before") <(uids))"
}
