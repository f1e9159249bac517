# shellcheck shell=bash
# One Kubernetes node below one folder, `node`, in a network namespace of its own, `network`. Sourced after lib.sh, never run.
#
# `programs` is the folder that install.sh prints:
# shellcheck disable=SC2154

node_address=10.88.6.1
pods=10.88.7.0/24
services=10.96.0.0/16

# Says what is missing where this machine cannot run a node.
check_machine() {
    local group
    [[ $(uname -s) == Linux && $(id -u) == 0 ]] || fail "a node needs root" "Run it as root, or in a virtual machine."
    command -v apt-get >/dev/null || fail "a node is made of Debian's packages, and there is no apt-get here"
    if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
        [[ -w /sys/fs/cgroup/cgroup.procs ]] || fail "/sys/fs/cgroup cannot be written" "In a container, it needs --privileged."
    else
        for group in cpu cpuacct cpuset memory pids devices freezer; do
            [[ -w /sys/fs/cgroup/$group ]] || fail "the control group $group is not mounted, or cannot be written" \
                "In a container, it needs --privileged."
        done
    fi
    unshare --net true 2>/dev/null || fail "no network namespace can be made" "In a container, it needs --privileged."
    grep -q overlay /proc/filesystems || modprobe overlay 2>/dev/null || fail "the kernel has no overlayfs"
}

make_folder() {
    node=$(mktemp -d "${TMPDIR:-/var/tmp}/operator-host-node.XXXXXX")
    # A name of this run, so that two do not meet.
    network=node-${node##*.}
    echo "$network" >"$node/network"
    mkdir -p "$node"/{etc/cni,log,pids,kubelet,containerd,packages}
    export KUBECONFIG=$node/etc/admin.conf
}

in_network() { nsenter --net="/run/netns/$network" "$@"; }
kubectl() { in_network "$(type -P kubectl)" "$@"; }

# start NAME COMMAND...: in the background, in the network namespace.
start() {
    local name=$1
    shift
    setsid nsenter --net="/run/netns/$network" "$@" >>"$node/log/$name" 2>&1 </dev/null 9>&- &
    echo $! >"$node/pids/$name"
    # The shell need not say how it ended.
    disown
}

# stop NAME [SIGNAL]
stop() {
    local pid
    pid=$(cat "$node/pids/$1" 2>/dev/null) || return 0
    kill "-${2:-TERM}" "$pid" 2>/dev/null || true
    for _ in {1..100}; do
        kill -0 "$pid" 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL "$pid" 2>/dev/null || true
    rm -f "$node/pids/$1"
}

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed.
until_true() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "this did not come about in time: $what" "See the logs in $node/log (KEEP=yes keeps them)."
        sleep 0.2
    done
}

start_network() {
    ip netns add "$network"
    in_network ip link set lo up
    in_network ip link add node0 type veth peer name node0-peer
    in_network ip address add "$node_address/24" dev node0
    in_network ip link set node0-peer up
    in_network ip link set node0 up
    # For programs on the node; there is no default route, so nothing leaves the namespace.
    in_network ip route add "$services" dev node0
    in_network sysctl -qw net.ipv4.ip_forward=1
    in_network sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true
}

# certificate NAME SUBJECT [NAMES]
certificate() {
    local keys=$node/etc/keys
    openssl req -newkey rsa:2048 -nodes -subj "$2" -keyout "$keys/$1.key" -out "$keys/$1.csr" 2>/dev/null
    openssl x509 -req -in "$keys/$1.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -CAcreateserial -days 2 -out "$keys/$1.crt" \
        -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth" && echo "${3:+subjectAltName=$3}") 2>/dev/null
}

# kubeconfig NAME SUBJECT [NAMES]: a certificate and the file that uses it.
kubeconfig() {
    certificate "$@"
    cat >"$node/etc/$1.conf" <<END
apiVersion: v1
kind: Config
current-context: node
contexts: [{name: node, context: {cluster: node, user: $1}}]
clusters: [{name: node, cluster: {server: "https://$node_address:6443", certificate-authority: $node/etc/keys/ca.crt}}]
users: [{name: $1, user: {client-certificate: $node/etc/keys/$1.crt, client-key: $node/etc/keys/$1.key}}]
END
}

make_certificates() {
    local keys=$node/etc/keys
    mkdir -p "$keys"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout "$keys/ca.key" -out "$keys/ca.crt" 2>/dev/null
    openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
    certificate apiserver /CN=kube-apiserver \
        "IP:127.0.0.1,IP:$node_address,IP:${services%.0/16}.1,DNS:kubernetes.default.svc,DNS:kubernetes.default,DNS:kubernetes"
    certificate kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
    kubeconfig admin /O=system:masters/CN=admin
    kubeconfig controller-manager /CN=system:kube-controller-manager
    kubeconfig scheduler /CN=system:kube-scheduler
    kubeconfig proxy /CN=system:kube-proxy
    kubeconfig kubelet /O=system:nodes/CN=system:node:node-1 "DNS:node-1,IP:$node_address"
}

# Runs ctr, the client of containerd.
containers() { "$node/packages/usr/bin/ctr" --address "$node/containerd/socket" --namespace k8s.io "$@"; }

start_containerd() {
    (cd "$node/packages" && apt-get -qq -o APT::Sandbox::User=root download containerd >/dev/null && dpkg-deb -x containerd_*.deb .)
    cat >"$node/etc/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$node/addresses", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
    cat >"$node/etc/containerd.toml" <<END
version = 2
root = "$node/containerd/root"
state = "$node/containerd/state"
[grpc]
  address = "$node/containerd/socket"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/stand-in:1"
  # Root may lack the capability to lower it.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$node/etc/cni"
END
    start containerd env PATH="$node/packages/usr/bin:$PATH" "$node/packages/usr/bin/containerd" --config "$node/etc/containerd.toml"
    until_true 30 "containerd answers" containers version
}

start_cluster() {
    local keys=$node/etc/keys
    echo "nameserver ${services%.0/16}.10" >"$node/etc/resolv.conf"
    start etcd "$programs/etcd" --data-dir="$node/etcd" --listen-client-urls=http://127.0.0.1:2379 \
        --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 --unsafe-no-fsync
    start_apiserver
    start controller-manager "$programs/kube-controller-manager" --kubeconfig="$node/etc/controller-manager.conf" \
        --root-ca-file="$keys/ca.crt" --service-account-private-key-file="$keys/accounts.key" \
        --use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1 --port=0
    start scheduler "$programs/kube-scheduler" --kubeconfig="$node/etc/scheduler.conf" --leader-elect=false \
        --bind-address=127.0.0.1
    start proxy "$programs/kube-proxy" --kubeconfig="$node/etc/proxy.conf" --hostname-override=node-1 --proxy-mode=iptables \
        --cluster-cidr="$pods" --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 \
        --conntrack-tcp-timeout-close-wait=0 --oom-score-adj=0
    cat >"$node/etc/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $keys/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $keys/kubelet.crt
tlsPrivateKeyFile: $keys/kubelet.key
cgroupDriver: cgroupfs
cgroupRoot: /$network
failSwapOn: false
clusterDNS: [${services%.0/16}.10]
clusterDomain: cluster.local
resolvConf: $node/etc/resolv.conf
oomScoreAdj: 0
maxOpenFiles: 20000
evictionHard: {memory.available: 100Mi, nodefs.available: 1Gi, imagefs.available: 1Gi}
imageGCHighThresholdPercent: 100
END
    for group in /sys/fs/cgroup/*/; do
        [[ ! -f $group/cgroup.procs ]] || mkdir -p "$group$network"
    done
    local cpus=/sys/fs/cgroup/cpuset
    [[ ! -d $cpus/$network ]] || {
        cat "$cpus/cpuset.cpus" >"$cpus/$network/cpuset.cpus"
        cat "$cpus/cpuset.mems" >"$cpus/$network/cpuset.mems"
    }
    start kubelet "$programs/kubelet" --config="$node/etc/kubelet.yaml" --kubeconfig="$node/etc/kubelet.conf" \
        --hostname-override=node-1 --node-ip="$node_address" --root-dir="$node/kubelet" --cert-dir="$node/kubelet/keys" \
        --container-runtime=remote --container-runtime-endpoint="unix://$node/containerd/socket" \
        --image-service-endpoint="unix://$node/containerd/socket" --pod-infra-container-image=localhost/stand-in:1 \
        --volume-plugin-dir="$node/kubelet/plugins"
    until_true 60 "the node is Ready" kubectl wait --for=condition=Ready node/node-1 --timeout=5s
}

start_apiserver() {
    local keys=$node/etc/keys
    start apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 \
        --advertise-address="$node_address" --secure-port=6443 --insecure-port=0 \
        --tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" --client-ca-file="$keys/ca.crt" \
        --kubelet-client-certificate="$keys/kubelet-client.crt" --kubelet-client-key="$keys/kubelet-client.key" \
        --kubelet-certificate-authority="$keys/ca.crt" --kubelet-preferred-address-types=InternalIP \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$keys/accounts.key" \
        --service-account-signing-key-file="$keys/accounts.key" --service-cluster-ip-range="$services"
    until_true 60 "the API server is ready" kubectl get --raw /readyz
}

# Ends everything and removes every trace: containers, mounts, control groups, the network namespace, the folder.
stop_node() {
    local name id mount group networks=()
    for name in kubelet proxy scheduler controller-manager apiserver etcd; do
        stop "$name"
    done
    if [[ -f $node/pids/containerd ]]; then
        # Of each pod, which CNI has made beside ours.
        for id in $(containers containers list --quiet 2>/dev/null); do
            networks+=("$(containers containers info "$id" | jq -r '.Spec.linux.namespaces[] | select(.type == "network").path // empty')")
        done
        for id in $(containers tasks list --quiet 2>/dev/null); do
            containers tasks kill --signal KILL --all "$id" >/dev/null 2>&1 || true
            containers tasks delete --force "$id" >/dev/null 2>&1 || true
        done
        stop containerd
    fi
    # Shims that outlived their container: by their control socket, which is below the folder.
    for id in $(pgrep --full -- "-address $node/containerd/socket" || true); do
        kill -KILL "$id" 2>/dev/null || true
    done
    while read -r mount; do
        umount --lazy "$mount" 2>/dev/null || true
    done < <(awk -v node="$node/" 'index($5, node) == 1 { print $5 }' /proc/self/mountinfo | tac)
    for name in "$network" "${networks[@]##*/}"; do
        ip netns delete "$name" 2>/dev/null || true
    done
    for group in /sys/fs/cgroup/"$network" /sys/fs/cgroup/*/"$network"; do
        [[ ! -d $group ]] || find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    rm -rf --one-file-system "$node"
}
