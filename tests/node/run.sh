#!/usr/bin/env bash
# Runs the deployment on a real node: etcd, the control plane, containerd and a kubelet, from Debian's packages and sources.
#
#   tests/node/run.sh [SCENARIO...]      all of scenarios.sh, when none is named
#   KEEP=yes tests/node/run.sh ...       leaves the node running, and says how to reach it
#   PROGRAM=FILE tests/node/run.sh ...   takes that operator-host, with its whole path, instead of building a release
#
# All of it runs in namespaces of its own and below one folder, $TMPDIR/operator-host-node.*. It changes no address, port,
# firewall rule, setting or service of the machine, and leaves nothing but the Debian packages: the end compares. Needs root and
# the control groups of the machine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
# shellcheck source=tests/control-plane/lib.sh
source "$here/../control-plane/lib.sh"
# shellcheck source=tests/node/node.sh
source "$here/node.sh"
# shellcheck source=tests/node/cluster.sh
source "$here/cluster.sh"
# shellcheck source=tests/node/images.sh
source "$here/images.sh"
# shellcheck source=tests/node/scenarios.sh
source "$here/scenarios.sh"

check_machine
install_packages "to run a node" busybox-static conntrack containernetworking-plugins gcc iproute2 iptables jq libc6-dev \
    mariadb-client-core mariadb-server-core openssl procps python3 python3-yaml runc
command -v kubectl >/dev/null || install_packages "to install the host" kubernetes-client
programs=$("$here/../control-plane/install.sh" node)
# The node's network leads nowhere.
"$here/../helm.sh" fetch

make_folder
# Each command compiles plugins otherwise.
export OPERATOR_HOST_CACHE_DIR=$node/cache
mkdir "$OPERATOR_HOST_CACHE_DIR"
figures=()
before=$(machine_state)
trap '[[ -n ${KEEP:-} ]] || stop_node; stop_job' EXIT
gcc -static -O1 -Wall -Werror -o "$node/stand-in" tests/node/stand-in.c
check_overlay
build_host
say "Starting the node"
make_certificates
fetch_containerd
power_on
start_containerd
import_images
start_cluster
for scenario in "${@:-${scenarios[@]}}"; do
    say "${scenario//_/ }"
    started=$SECONDS
    "$scenario"
    printf '    took %s s\n' $((SECONDS - started)) >&2
done
if [[ -n ${KEEP:-} ]]; then
    say "The node runs on: nsenter --target $first --net kubectl --kubeconfig $KUBECONFIG …, and $here/stop.sh $node ends it"
else
    trap stop_job EXIT
    stop_node
    after=$(machine_state)
    [[ $after == "$before" ]] || fail "the node has left something on the machine" "$(diff <(echo "$before") <(echo "$after"))"
fi
say "All is well on a real node, after $SECONDS s"
printf '    %s\n' "${figures[@]}"
