# shellcheck shell=bash
# The cluster on the node: containerd, etcd, the control plane, kube-proxy and the kubelet. Sourced after node.sh, never run.
#
# `programs` is the folder that install.sh prints:
# shellcheck disable=SC2154

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

# containerd is taken apart and not installed: its package starts a service.
fetch_containerd() {
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
[plugins."io.containerd.internal.v1.opt"]
  path = "$node/containerd/opt"
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
}

start_containerd() {
    start containerd env PATH="$node/packages/usr/bin:$PATH" "$node/packages/usr/bin/containerd" --config "$node/etc/containerd.toml"
    until_true 30 "containerd answers" containers version
}

start_cluster() {
    local keys=$node/etc/keys
    echo "nameserver ${services%.0/16}.10" >"$node/etc/resolv.conf"
    start etcd "$programs/etcd" --data-dir="$node/etcd" --listen-client-urls=http://127.0.0.1:2379 \
        --advertise-client-urls=http://127.0.0.1:2379 --listen-peer-urls=http://127.0.0.1:2380 --unsafe-no-fsync
    start_apiserver
    start_controller_manager
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
    start_kubelet
    until_true 60 "the node is Ready" kubectl wait --for=condition=Ready node/node-1 --timeout=5s
}

start_kubelet() {
    start kubelet "$programs/kubelet" --config="$node/etc/kubelet.yaml" --kubeconfig="$node/etc/kubelet.conf" \
        --hostname-override=node-1 --node-ip="$node_address" --root-dir="$node/kubelet" --cert-dir="$node/kubelet/keys" \
        --container-runtime=remote --container-runtime-endpoint="unix://$node/containerd/socket" \
        --image-service-endpoint="unix://$node/containerd/socket" --pod-infra-container-image=localhost/stand-in:1 \
        --volume-plugin-dir="$node/kubelet/plugins"
}

# The last key signs the tokens of ServiceAccounts; all of these prove them.
trusted_keys=(accounts.key)
start_apiserver() {
    local keys=$node/etc/keys
    cat >"$node/etc/audit.yaml" <<END
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, verbs: [get, list, watch]}
  - {level: None, userGroups: [system:nodes]}
  - {level: Request, resources: [{group: example.com}, {group: apps}, {group: "", resources: [services]}]}
END
    start apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --bind-address=0.0.0.0 \
        --advertise-address="$node_address" --secure-port=6443 --insecure-port=0 \
        --tls-cert-file="$keys/apiserver.crt" --tls-private-key-file="$keys/apiserver.key" --client-ca-file="$keys/ca.crt" \
        --kubelet-client-certificate="$keys/kubelet-client.crt" --kubelet-client-key="$keys/kubelet-client.key" \
        --kubelet-certificate-authority="$keys/ca.crt" --kubelet-preferred-address-types=InternalIP \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
        --service-account-issuer=https://kubernetes.default.svc --service-cluster-ip-range="$services" \
        "${trusted_keys[@]/#/--service-account-key-file=$keys/}" --service-account-signing-key-file="$keys/${trusted_keys[-1]}" \
        --feature-gates=BoundServiceAccountTokenVolume=true \
        --audit-policy-file="$node/etc/audit.yaml" --audit-log-path="$node/log/audit" --audit-log-maxsize=1000
    until_true 60 "the API server is ready" kubectl get --raw /readyz
}

start_controller_manager() {
    local keys=$node/etc/keys
    start controller-manager "$programs/kube-controller-manager" --kubeconfig="$node/etc/controller-manager.conf" \
        --root-ca-file="$keys/ca.crt" --service-account-private-key-file="$keys/${trusted_keys[-1]}" \
        --use-service-account-credentials=true --leader-elect=false --bind-address=127.0.0.1 --port=0 \
        --flex-volume-plugin-dir="$node/kubelet/plugins"
}
