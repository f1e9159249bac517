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
#      Four minutes on two cores, once.
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

# What is built.
kubernetes=1.20.2
# Raise when this script builds something else from the same sources.
recipe=1
# The Debian release that has this version of the source package.
suite=bookworm

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

# Prints a deb-src line for the archive that this machine already gets its Debian packages from.
source_line() {
    local site keyring=/usr/share/keyrings/debian-archive-keyring.gpg option=''
    # The site field is $(REPO_URI) for apt, not for this shell.
    # shellcheck disable=SC2016
    site=$(apt-get indextargets --format '$(ORIGIN)|$(REPO_URI)|$(COMPONENT)|$(CREATED_BY)' |
        awk -F'|' '$1 == "Debian" && $3 == "main" && $4 == "Packages" && $2 !~ /security/ { print $2; exit }')
    [[ -n $site ]] || fail "no Debian archive is configured on this machine" \
        "Set KUBEBUILDER_ASSETS to a folder with etcd, kube-apiserver and kube-controller-manager."
    [[ ! -f $keyring ]] || option="[signed-by=$keyring] "
    echo "deb-src $option$site $suite main"
}

fetch_sources() {
    local lists=$work/lists
    mkdir -p "$lists/partial"
    source_line >"$work/sources.list"
    local options=(-q -o APT::Sandbox::User=root
        -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null
        -o Dir::State::Lists="$lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    cd "$work"
    apt-get "${options[@]}" update
    # The version in Debian's archive is spelt 1.20.5+really1.20.2-…
    local version
    version=$(apt-cache "${options[@]}" showsrc kubernetes |
        sed -n "s/^Version: \(.*${kubernetes//./\\.}-.*\)/\1/p" | tail -n 1)
    [[ -n $version ]] || { echo "the archive has no source package kubernetes $kubernetes"; return 1; }
    apt-get "${options[@]}" source --download-only "kubernetes=$version"
    # Taken apart and never installed: an installed etcd-server would start a service.
    apt-get -q -o APT::Sandbox::User=root download etcd-server golang-github-modern-go-reflect2-dev
}

unpack_sources() {
    cd "$work"
    dpkg-source --no-check -x kubernetes_*.dsc "$tree"
    dpkg-deb -x etcd-server_*.deb etcd
    dpkg-deb -x golang-github-modern-go-reflect2-dev_*.deb reflect2
    # The vendored reflect2 reaches into Go's runtime in a way that Go 1.18 ended: with it the API server
    # crashes on the first custom object.
    rm -rf "$tree/vendor/github.com/modern-go/reflect2"
    cp -r reflect2/usr/share/gocode/src/github.com/modern-go/reflect2 "$tree/vendor/github.com/modern-go/"
    cat >version <<END
KUBE_GIT_COMMIT=unknown
KUBE_GIT_TREE_STATE=archive
KUBE_GIT_VERSION=v$kubernetes
KUBE_GIT_MAJOR=$(cut -d. -f1 <<<"$kubernetes")
KUBE_GIT_MINOR=$(cut -d. -f2 <<<"$kubernetes")
END
}

compile() {
    cd "$tree"
    # Debian's Go, whatever else is on the PATH: this is what the sources were tried with.
    env -u GOFLAGS -u GOROOT -u GO111MODULE PATH="/usr/bin:$PATH" GOPATH="$work/gopath" \
        GOCACHE="$work/gocache" CGO_ENABLED=0 KUBE_GIT_VERSION_FILE="$work/version" \
        make WHAT="cmd/kube-apiserver cmd/kube-controller-manager" GOLDFLAGS="-s -w"
}

build() {
    local available
    available=$(df --output=avail -k "$cache" | tail -n 1)
    ((available > 4 * 1024 * 1024)) || fail "building the control plane needs 4 GiB below $cache" \
        "Free some space, or set XDG_CACHE_HOME to a folder on a larger disk."
    install_packages "to build the Kubernetes API server from Debian's sources, once" \
        ca-certificates dpkg-dev golang-go make rsync xz-utils
    # The lists must know etcd-server's current file even when nothing had to be installed.
    refresh_package_lists

    work=$(mktemp -d "$cache/.build-XXXXXX")
    tree=$work/gopath/src/k8s.io/kubernetes
    mkdir -p "$(dirname "$tree")" "$work/out"
    local log=$cache/build.log
    with_progress "Fetching the sources of Kubernetes $kubernetes and etcd" "$log" fetch_sources
    with_progress "Unpacking" "$log" unpack_sources
    with_progress "Compiling kube-apiserver and kube-controller-manager" "$log" compile

    cp "$work/etcd/usr/bin/etcd" "$tree"/_output/local/go/bin/kube-{apiserver,controller-manager} "$work/out/"
    keep "$work/out" "$built"
    rm -f "$log"
}

# keep FOLDER ENTRY: makes the folder an entry of the cache.
keep() {
    chmod 755 "$1" "$1"/* && (cd "$1" && sha256sum "${binaries[@]}" >SHA256SUMS) && sync -f "$1" &&
        rm -rf "$2" && mv -T "$1" "$2"
}

# Downloads the release into the cache. Works in a condition: each failure is returned, with its words in `reason`.
download() {
    local mirror=${CONTROL_PLANE_MIRROR:-} sites=https:// architecture archive program
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
    [[ -z ${work:-} ]] || rm -rf "$work"
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
        rm -rf "$cache"/.build-* "$cache"/.download-*
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
    say "Building a Kubernetes control plane ($kubernetes) for tests and make run: 4 to 12 minutes on 2 cores, once"
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
    if [[ $entry == "$downloaded" ]]; then
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
