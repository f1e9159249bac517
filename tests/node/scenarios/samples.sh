# shellcheck shell=bash
# Scenarios: what users ask for becomes what runs. Sourced by scenarios.sh, never run.
# shellcheck disable=SC2154,SC2034

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

the_samples_are_ready() {
    local sample started
    volumes | apply
    started=$(now)
    for sample in "${samples[@]}"; do
        apply <"manifests/samples/${sample%/*}.yaml"
    done
    until_samples_are_ready
    figure "the samples are Ready after $(milliseconds_since "$started") ms, two MariaDB servers among them"
}

# ready_says SAMPLE WORDS
ready_says() { kubectl get "$1" -o jsonpath='{.status.conditions[?(@.type=="Ready")].message}' | tee /dev/stderr | grep -qF "$2"; }
is_unready() { kubectl wait --for=condition=Ready=false "$1" --timeout=1s; }

# has_another_container POD ID
has_another_container() { [[ $(container default "$1") != "$2" ]]; }

ready_follows_the_kubelet() {
    local id
    kubectl patch myapp hello-app --type=merge -p '{"spec":{"image":"nginx:absent"}}' >/dev/null
    until_true 60 "the new image of hello-app is not there, and Ready says so" is_unready myapp/hello-app
    kubectl patch myapp hello-app --type=merge -p '{"spec":{"image":"nginx:1.27"}}' >/dev/null
    until_true 60 "hello-app is Ready again" is_ready myapp/hello-app
    # The kubelet starts a container again at once, and waits before it does so again.
    id=$(container default shop-db-0)
    kill_container default shop-db-0
    until_true 60 "shop-db-0 has another container" has_another_container shop-db-0 "$id"
    until_true 60 "shop-db-0 is Ready again" is_ready pod/shop-db-0
    kill_container default shop-db-0
    until_true 30 "Ready says how the container has ended" ready_says mysqlcluster/shop-db "container mysql has ended with exit code 137"
    until_true 120 "shop-db is Ready again" is_ready mysqlcluster/shop-db
}

password() { kubectl get secret shop-db-root -o jsonpath='{.data.password}' | base64 --decode; }
# sql POD PASSWORD STATEMENTS: over the network, as an application would.
sql() {
    in_network mariadb --no-defaults --host="$(kubectl get pod "$1" -o jsonpath='{.status.podIP}')" --user=root --password="$2" \
        --connect-timeout=5 --batch --skip-column-names --execute="$3"
}
has_the_order() { [[ $(sql shop-db-0 "$1" "SELECT item FROM shop.orders") == "a bicycle" ]]; }
is_replaced() { kubectl get pod "$1" -o jsonpath='{.metadata.uid}' | grep -vqx "$2"; }

a_database_keeps_its_password_and_its_data() {
    local secret uid claims started
    secret=$(password)
    [[ $secret =~ ^.{32}$ ]] || fail "the generated password has not 32 characters"
    ! sql shop-db-0 "not-$secret" "SELECT 1" 2>/dev/null || fail "the database takes any password"
    sql shop-db-0 "$secret" "CREATE DATABASE shop; CREATE TABLE shop.orders (item TEXT); INSERT INTO shop.orders VALUES ('a bicycle')" ||
        fail "the database does not take the generated password"
    claims=$(uids persistentvolumeclaims,secrets)

    uid=$(kubectl get pod shop-db-0 -o jsonpath='{.metadata.uid}')
    started=$(now)
    kubectl delete pod shop-db-0 --wait=false >/dev/null
    until_true 120 "another pod shop-db-0 is there" is_replaced shop-db-0 "$uid"
    until_true 120 "the other pod has the data" has_the_order "$secret"
    figure "a deleted pod of the database answers again after $(milliseconds_since "$started") ms"

    kubectl delete mysqlcluster shop-db --timeout=60s >/dev/null
    until_true 120 "the pods of the deleted cluster are gone" pod_is_gone shop-db-0
    same_uids "$claims" persistentvolumeclaims,secrets
    apply <manifests/samples/mysqlcluster.yaml
    until_true 180 "shop-db is Ready again" is_ready mysqlcluster/shop-db
    same_uids "$claims" persistentvolumeclaims,secrets
    [[ $(password) == "$secret" ]] || fail "the password is another one"
    until_true 10 "the new cluster has the data of the deleted one" has_the_order "$secret"
}
