# shellcheck shell=bash
# One Kubernetes node below one folder, `node`, in namespaces of its own: network, mounts, processes. When the first process of
# these ends, the kernel ends all others, and their addresses, rules and mounts are gone. Sourced after lib.sh, never run.
#
# `programs` is the folder that install.sh prints:
# shellcheck disable=SC2154,SC2034

node_address=10.88.6.1
pods=10.88.7.0/24
services=10.96.0.0/16
control_groups=/sys/fs/cgroup
# Where containerd, CNI and the kubelet write whatever their options say: the node has a layer of its own over each.
places=(opt run usr/libexec var/lib var/log)
# What the kubelet sets: it finds them as it wants them, and leaves those of the machine alone.
settings=(vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 kernel/keys/root_maxkeys=1000000
    kernel/keys/root_maxbytes=25000000)

# Control groups of version 2, one tree for all controllers?
is_unified() { [[ -f $control_groups/cgroup.controllers ]]; }

# Says what is missing where this machine cannot run a node.
check_machine() {
    local group hint="In a container, it needs --privileged."
    [[ $(uname -s) == Linux && $(id -u) == 0 ]] || fail "a node needs root" "Run it as root, or in a virtual machine."
    command -v apt-get >/dev/null || fail "a node is made of Debian's packages, and there is no apt-get here"
    if is_unified; then
        [[ -w $control_groups/cgroup.subtree_control ]] || fail "$control_groups cannot be written" "$hint"
        for group in cpu cpuset memory pids; do
            grep -qw "$group" "$control_groups/cgroup.controllers" || fail "$control_groups has no controller $group" \
                "In a container, it needs --cgroupns=host."
        done
    else
        for group in cpu cpuacct cpuset memory pids devices freezer; do
            [[ -w $control_groups/$group ]] || fail "the control group $group is not mounted, or cannot be written" "$hint"
        done
    fi
    unshare --net --mount --pid --fork true 2>/dev/null || fail "no namespaces can be made" "$hint"
}

# Containers need what a folder on another overlay, such as the root of most containers, cannot have.
check_overlay() {
    local try=$node/try
    mkdir -p "$try"/{upper,work,merged}
    unshare --mount mount -t overlay overlay -o "lowerdir=$try/upper,upperdir=$try/merged,workdir=$try/work" "$try/upper" 2>/dev/null ||
        fail "no overlay can be mounted with layers in $node" "Set TMPDIR to a folder on a disk, such as a volume of the container."
    rm -rf "$try"
}

make_folder() {
    node=$(mktemp -d "${TMPDIR:-/var/tmp}/operator-host-node.XXXXXX")
    # A name of this run, so that two do not meet.
    network=node-${node##*.}
    mkdir -p "$node"/{etc/cni,log,pids,kubelet,containerd,packages,settings}
    export KUBECONFIG=$node/etc/admin.conf
}

# Enters the network alone, which suffices to talk to the API server.
in_network() { nsenter --target "$first" --net "$@"; }
in_node() { nsenter --target "$first" --net --mount --pid "$@"; }
kubectl() { in_network "$(type -P kubectl)" "$@"; }

# start NAME COMMAND...: in the background, on the node.
start() {
    local name=$1
    shift
    setsid nsenter --target "$first" --net --mount --pid "$@" >>"$node/log/$name" 2>&1 </dev/null 9>&- &
    echo $! >"$node/pids/$name"
    # The shell need not say how it ended.
    disown
}

# stop NAME: at once; told to end, an API server waits a minute for its watches. nsenter ends with its child.
stop() {
    local pid
    pid=$(<"$node/pids/$1")
    pkill -KILL --parent "$pid"
    until_true 10 "$1 ends" process_ended "$pid"
}
process_ended() { ! kill -0 "$1" 2>/dev/null; }

# What the node looks like, for whoever reads why something failed.
node_state() {
    kubectl get pods --all-namespaces -o wide
    kubectl get events --all-namespaces --sort-by=.lastTimestamp | tail -n 15
}

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed. Otherwise says what it printed last.
until_true() {
    local deadline=$((SECONDS + $1)) within=$1 what=$2 last
    shift 2
    until last=$("$@" 2>&1); do
        ((SECONDS < deadline)) || fail "within $within s this did not come about: $what" "$(printf 'It was tried with: %s\n%s\n%s' \
            "$*" "$last" "$(node_state 2>&1)")"
        sleep 0.1
    done
}

# Starts the first process, which holds the namespaces, and makes the network.
power_on() {
    local place setting
    mkdir -p "${places[@]/#/$node/machine/}" "${places[@]/#/$node/work/}"
    for setting in "${settings[@]}"; do
        echo "${setting#*=}" >"$node/settings/${setting//[\/=]/-}"
    done
    # The inner shell expands them.
    # shellcheck disable=SC2016
    unshare --net --mount --pid --fork --kill-child --mount-proc bash -euc '
        node=$0 places=$1 settings=$2
        mount --make-rshared /
        for place in $places; do
            mount -t overlay overlay -o "lowerdir=/$place,upperdir=$node/machine/$place,workdir=$node/work/$place" "/$place"
        done
        for setting in $settings; do
            mount --bind "$node/settings/${setting//[\/=]/-}" "/proc/sys/${setting%=*}"
        done
        touch "$node/is-on"
        exec "$node/stand-in"
    ' "$node" "${places[*]}" "${settings[*]}" >>"$node/log/machine" 2>&1 </dev/null 9>&- &
    holder=$!
    disown
    until [[ -e $node/is-on ]]; do
        kill -0 "$holder" 2>/dev/null || fail "the namespaces of the node cannot be made" "$(<"$node/log/machine")"
        sleep 0.1
    done
    first=$(pgrep --parent "$holder")
    echo "$holder $first" >"$node/processes"
    in_network ip link set lo up
    in_network ip link add node0 type veth peer name node0-peer
    in_network ip address add "$node_address/24" dev node0
    in_network ip link set node0-peer up
    in_network ip link set node0 up
    # For programs on the node; there is no default route, so nothing leaves the namespace.
    in_network ip route add "$services" dev node0
    in_network sysctl -qw net.ipv4.ip_forward=1
    in_network sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true
    make_control_groups
}

# As when the power fails: every process ends at once, and what was in memory is lost.
power_off() {
    [[ -n ${holder:-} ]] || return 0
    # The process that waits for the first one ends it, and the kernel all others before it is gone.
    kill -KILL "$(pgrep --parent "$holder")" 2>/dev/null || true
    until process_ended "$holder"; do sleep 0.1; done
    holder=''
    find "$control_groups" -depth -type d -path "*/$network*" -exec rmdir {} +
    rm -rf --one-file-system "$node"/{is-on,pids/*,work,machine/run,containerd/state}
}

make_control_groups() {
    local group
    if is_unified; then
        cp "$control_groups/cgroup.subtree_control" "$node/subtree_control"
        # The kubelet wants all that it knows and the machine has.
        while read -r group; do
            echo "+$group" >"$control_groups/cgroup.subtree_control"
        done < <(grep -owE 'cpu|cpuset|memory|pids|hugetlb' "$control_groups/cgroup.controllers")
        mkdir "$control_groups/$network"
        return
    fi
    for group in "$control_groups"/*/; do
        [[ ! -f $group/cgroup.procs ]] || mkdir "$group$network"
    done
    for group in cpus mems; do
        cat "$control_groups/cpuset/cpuset.$group" >"$control_groups/cpuset/$network/cpuset.$group"
    done
}

# Ends everything and removes every trace.
stop_node() {
    local group
    power_off
    if [[ -f $node/subtree_control ]]; then
        for group in $(<"$control_groups/cgroup.subtree_control"); do
            grep -qw "$group" "$node/subtree_control" || echo "-$group" >"$control_groups/cgroup.subtree_control"
        done
    fi
    rm -rf --one-file-system "$node"
}

# What of the machine a node could change, to compare before and after.
machine_state() {
    local setting
    echo "namespaces: $(ls /run/netns 2>/dev/null)"
    echo "mounts: $(grep -cE 'operator-host-node|kubelet|containerd|/cni' /proc/self/mountinfo)"
    echo "processes: $(pgrep --count --full 'operator-host-node[.]' || true)"
    echo "control groups: $(find "$control_groups" -type d -name 'node-*')"
    [[ ! -f $control_groups/cgroup.subtree_control ]] || echo "controllers: $(<"$control_groups/cgroup.subtree_control")"
    ip -oneline link | awk '{ print "link: " $2 }'
    iptables-save | grep -v '^#' | sed 's/\[[0-9:]*\]//' || true
    for setting in "${settings[@]}"; do
        echo "${setting%=*}: $(<"/proc/sys/${setting%=*}")"
    done
    # Each file that a program of a node writes when nothing says otherwise.
    find /etc/cni /opt/cni /opt/containerd /run/containerd /run/xtables.lock /usr/libexec/kubernetes /var/lib/{cni,containerd,kubelet} \
        /var/lib/etcd /var/log/{pods,containers} -printf 'file: %p %T@\n' 2>/dev/null | sort || true
}
