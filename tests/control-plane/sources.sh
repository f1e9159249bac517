# shellcheck shell=bash
# Programs of Kubernetes, built from Debian's source package. Sourced after lib.sh, never run.
#
# Who sources this sets `cache`, a folder that exists, and removes `work`, which is made below it, when it has what it needs. A
# build that is interrupted leaves `work`, and the next one goes on from there:
# shellcheck disable=SC2154

# What is built.
kubernetes=1.20.2
# The Debian release that has this version of the source package.
suite=bookworm

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
    cd "$work" || return
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
    cd "$work" || return
    rm -rf "$tree" etcd reflect2
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

# compile PROGRAM...
#
# Without the cloud providers and without docker, which nobody uses here. Of the generated code only the definitions of OpenAPI
# are not in the sources. Together that is half of the compiler's work.
compile() {
    cd "$tree" || return
    # Debian's Go, whatever else is on the PATH: this is what the sources were tried with.
    local go=(env -u GOROOT -u GO111MODULE PATH="/usr/bin:$PATH" GOPATH="$work/gopath" GOCACHE="$work/gocache" CGO_ENABLED=0
        KUBE_GIT_VERSION_FILE="$work/version" GOFLAGS="-tags=providerless,dockerless" GOLDFLAGS="-s -w")
    # With the variables of the Makefile that includes this one.
    "${go[@]}" GOFLAGS='' make -f Makefile.generated_files gen_openapi CALLED_FROM_MAIN_MAKEFILE=1 KUBE_VERBOSE=0 \
        PRJ_SRC_PATH=k8s.io/kubernetes OUT_DIR=_output BIN_DIR=_output/bin GENERATED_FILE_PREFIX=zz_generated. || return
    "${go[@]}" hack/make-rules/build.sh "${@/#/cmd/}"
}

# once NAME COMMAND...: runs a step, unless an interrupted build has completed it.
once() {
    [[ ! -e $work/$1 ]] || return 0
    "${@:2}"
    : >"$work/$1"
}

# compile_programs PROGRAM...: leaves them in $tree/_output/local/go/bin, and etcd in $work/etcd/usr/bin.
compile_programs() {
    local available log=$cache/build.log
    available=$(df --output=avail -k "$cache" | tail -n 1)
    ((available > 4 * 1024 * 1024)) || fail "building Kubernetes needs 4 GiB below $cache" \
        "Free some space, or set XDG_CACHE_HOME to a folder on a larger disk."
    install_packages "to build programs of Kubernetes from Debian's sources, once" \
        ca-certificates dpkg-dev golang-go make rsync xz-utils
    # The lists must know etcd-server's current file even when nothing had to be installed.
    refresh_package_lists

    work=$cache/.build-$kubernetes
    tree=$work/gopath/src/k8s.io/kubernetes
    mkdir -p "$(dirname "$tree")" "$work/out"
    once fetched with_progress "Fetching the sources of Kubernetes $kubernetes and etcd" "$log" fetch_sources
    once unpacked with_progress "Unpacking" "$log" unpack_sources
    usual=300 with_progress "Compiling $*" "$log" compile "$@"
    rm -f "$log"
}
