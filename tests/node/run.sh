#!/usr/bin/env bash
# Runs the deployment on a real node: etcd, the control plane, containerd and a kubelet, from Debian's packages and sources.
#
#   tests/node/run.sh [SCENARIO...]      all of scenarios.sh, when none is named
#   KEEP=yes tests/node/run.sh ...       leaves the node running, and says how to reach it
#
# All of it runs in one network namespace and below one folder. It changes no address, port, firewall rule or service of the
# machine, and nothing of it is left. Needs root and the control groups of the machine.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/../control-plane/lib.sh"
# shellcheck source=tests/node/node.sh
source "$here/node.sh"
# shellcheck source=tests/node/images.sh
source "$here/images.sh"
# shellcheck source=tests/node/scenarios.sh
source "$here/scenarios.sh"
cd "$here/../.."

check_machine
# containerd is taken apart and not installed: its package starts a service.
install_packages "to run a node" conntrack containernetworking-plugins gcc iproute2 iptables jq libc6-dev openssl \
    procps python3 runc
command -v kubectl >/dev/null || install_packages "to install the host" kubernetes-client
programs=$("$here/../control-plane/install.sh" node)

make_folder
trap '[[ -n ${KEEP:-} ]] || stop_node; stop_job' EXIT
say "Starting the node"
start_network
make_certificates
start_containerd
import_images
start_cluster
figures=()
for scenario in "${@:-${scenarios[@]}}"; do
    say "${scenario//_/ }"
    started=$SECONDS
    "$scenario"
    printf '    took %s s\n' $((SECONDS - started)) >&2
done
[[ -z ${KEEP:-} ]] ||
    say "The node runs on: nsenter --net=/run/netns/$network kubectl --kubeconfig $node/etc/admin.conf …, and $here/stop.sh $node ends it"
say "All is well on a real node"
printf '    %s\n' "${figures[@]}"
