#!/usr/bin/env bash
# Makes sure that the parts of a Kubernetes control plane are on this machine and prints, as the only line on
# stdout, the folder that holds `etcd`, `kube-apiserver` and `kube-controller-manager`. Says on stderr which version it
# is, and where it came from.
#
#   1. KUBEBUILDER_ASSETS, when it is set: those binaries. Where it lacks kube-controller-manager (the usual
#      envtest download does), that one alone is borrowed from 2 to 4.
#   2. The user's cache, when it has a whole entry (every file there, every checksum right): one that was downloaded,
#      else one that was built.
#   3. A download of the release in release.sh. CONTROL_PLANE_MIRROR=URL takes the files from there instead, at
#      URL/github.com/... and URL/dl.k8s.io/...
#   4. Otherwise a build: etcd out of Debian's package, the rest from Debian's source package of Kubernetes.
#      Five minutes on two cores, once. Interrupted, the next start goes on from there.
#
# `install.sh node` prints a folder that also holds the programs of a node (`kubelet`, `kube-scheduler`, `kube-proxy`), all
# six of one release: built, never downloaded.
#
# An entry appears in the cache under its name only when it is complete.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/lib.sh"
# shellcheck source=tests/control-plane/download.sh
source "$here/download.sh"
# shellcheck source=tests/control-plane/release.sh
source "$here/release.sh"
# shellcheck source=tests/control-plane/sources.sh
source "$here/sources.sh"

# Raise when this script builds something else from the same sources.
recipe=2

machine=$(uname -m)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/control-plane
downloaded=$cache/$release-downloaded-$machine
built=$cache/$kubernetes-$recipe-$machine
binaries=(etcd kube-apiserver kube-controller-manager)

# Prints why an entry of the cache cannot be used; nothing when it is whole.
entry_fault() {
    local entry=$1 name
    [[ -d $entry ]] || { echo "it is not there"; return; }
    [[ -f $entry/SHA256SUMS ]] || { echo "it has no manifest (SHA256SUMS)"; return; }
    for name in "${binaries[@]}"; do
        [[ -f $entry/$name ]] || { echo "$name is missing"; return; }
        [[ -x $entry/$name ]] || { echo "$name cannot be run"; return; }
        grep -q "^[0-9a-f]\{64\}  $name\$" "$entry/SHA256SUMS" || { echo "its manifest lacks $name"; return; }
    done
    (cd "$entry" && sha256sum --check --strict --quiet SHA256SUMS >/dev/null 2>&1) || echo "a checksum is wrong"
}

programs=("${binaries[@]:1}")
if [[ ${1:-} == node ]]; then
    unset KUBEBUILDER_ASSETS
    control_plane=$built
    built+=-node downloaded=''
    # A control plane that is there is used.
    [[ -n $(entry_fault "$control_plane") ]] || programs=()
    programs+=(kubelet kube-scheduler kube-proxy)
    binaries+=(kubelet kube-scheduler kube-proxy)
fi

build() {
    compile_programs "${programs[@]}"

    cp "$work/etcd/usr/bin/etcd" "${programs[@]/#/$tree/_output/local/go/bin/}" "$work/out/"
    [[ " ${programs[*]} " == *" kube-apiserver "* ]] || cp "$control_plane"/kube-{apiserver,controller-manager} "$work/out/"
    keep "$work/out" "$built"
    rm -rf "$work"
}

# keep FOLDER ENTRY: makes the folder an entry of the cache.
keep() {
    chmod 755 "$1" "$1"/* && (cd "$1" && sha256sum "${binaries[@]}" >SHA256SUMS) && sync -f "$1" &&
        rm -rf "$2" && mv -T "$1" "$2"
}

# Downloads the release into the cache. Works in a condition: each failure is returned, with its words in `reason`.
download() {
    local mirror=${CONTROL_PLANE_MIRROR:-} sites=https:// architecture archive program
    reason="the programs of a node are of the release that is built"
    [[ -n $downloaded ]] || return
    case $machine in
        x86_64) architecture=amd64 ;;
        aarch64) architecture=arm64 ;;
        *) reason="there is no download for $machine"; return 1 ;;
    esac
    command -v curl >/dev/null || { reason="there is no curl on this machine"; return 1; }
    [[ -z $mirror ]] || sites=${mirror%/}/
    archive=envtest-v$release-linux-$architecture.tar.gz
    program=kube-controller-manager
    say "Downloading Kubernetes $release from $(public "${mirror:-github.com and dl.k8s.io}")"
    reason="cannot write below $cache"
    work=$(mktemp -d "$cache/.download-XXXXXX") || return
    mkdir "$work/out" || return
    # One after the other: where the first has no answer the second is not asked for.
    fetch_checked "${sites}github.com/kubernetes-sigs/controller-tools/releases/download/envtest-v$release/$archive" \
        "$work/$archive" sha512 "${archive_sha512[$architecture]}" || return
    fetch_checked "${sites}dl.k8s.io/release/v$release/bin/linux/$architecture/$program" \
        "$work/out/$program" sha256 "${controller_manager_sha256[$architecture]}" || return
    reason="what was downloaded cannot be unpacked into $cache"
    tar --extract --gzip --file "$work/$archive" --directory "$work/out" --no-same-owner --strip-components 2 \
        controller-tools/envtest/{etcd,kube-apiserver} || return
    keep "$work/out" "$downloaded"
}

clean_up() {
    stop_job
    [[ ${work:-} != */.download-* ]] || rm -rf "$work"
    work=''
}

# Finds the entry of the cache that is used, and its fault.
find_entry() {
    entry=$downloaded
    [[ -d $entry ]] || entry=$built
    fault=$(entry_fault "$entry")
    [[ -z $fault ]]
}

# Leaves a whole entry in the cache. One process at a time: the others wait.
ensure_entry() {
    ! find_entry || return 0
    mkdir -p "$cache"
    exec 9>"$cache/.lock"
    if ! flock -n 9; then
        say "Another process is downloading or building the control plane; waiting for it"
        flock 9
    fi
    if ! find_entry; then
        if [[ -d $entry ]]; then
            say "The control plane in the cache cannot be used ($fault): replacing it"
            rm -rf "$entry"
        fi
        rm -rf "$cache"/.download-*
        trap clean_up EXIT
        download || build_instead
        find_entry || fail "$entry cannot be used: $fault" "Remove it and start again."
    fi
    exec 9>&-
}

build_instead() {
    say "The download is given up: $reason"
    clean_up
    # A download that was damaged may have hidden it.
    [[ -n $(entry_fault "$built") ]] || return 0
    say "Building a Kubernetes control plane ($kubernetes) for tests and make run: 4 to 10 minutes on 2 cores, once"
    build
}

# Prints a folder of links: the caller's etcd and kube-apiserver, and the cache's kube-controller-manager.
borrowed_controller_manager() {
    local folder
    folder=$cache/borrowed-$(printf '%s' "$1" | sha256sum | cut -c1-12)
    mkdir -p "$folder"
    ln -sfn "$1/etcd" "$folder/etcd"
    ln -sfn "$1/kube-apiserver" "$folder/kube-apiserver"
    ln -sfn "$entry/kube-controller-manager" "$folder/kube-controller-manager"
    echo "$folder"
}

# describe FOLDER ORIGIN: says which version runs, and where it came from.
describe() {
    local version
    version=$("$1/kube-apiserver" --version 2>/dev/null) ||
        fail "$1/kube-apiserver does not run" "Is it made for this machine ($machine)?"
    say "$version, $2"
}

describe_entry() {
    if [[ -z $downloaded ]]; then
        describe "$entry" "and a kubelet of the same release, built from Debian's sources"
    elif [[ $entry == "$downloaded" ]]; then
        describe "$entry" "which was downloaded ($entry)"
    else
        describe "$entry" "which was built from Debian's sources (remove $entry to try a download of $release)"
    fi
}

main() {
    local assets=${KUBEBUILDER_ASSETS:-}
    if [[ -z $assets ]]; then
        ensure_entry
        describe_entry
        echo "$entry"
        return
    fi
    for name in etcd kube-apiserver; do
        [[ -x $assets/$name ]] || fail "KUBEBUILDER_ASSETS is $assets and there is no $name that can be run in it" \
            "Point it at a folder with etcd and kube-apiserver, or unset it and they are downloaded or built."
    done
    assets=$(cd "$assets" && pwd)
    describe "$assets" "from KUBEBUILDER_ASSETS ($assets)"
    if [[ -x $assets/kube-controller-manager ]]; then
        echo "$assets"
    else
        say "It has no kube-controller-manager (which brings the garbage collector): borrowing another's"
        ensure_entry
        describe_entry
        borrowed_controller_manager "$assets"
    fi
}

main
