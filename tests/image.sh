#!/usr/bin/env bash
# Builds the image of the Dockerfile where no image can be pulled, looks into it, and runs its program as a pod would:
# tests/image.sh [PROFILE], `release` when none is given.
#
# The image that the Dockerfile begins with is made here under its own name: Debian's minimal system with this machine's
# Rust toolchain, and with the crates that this machine has. Needs root, or a user that buildah can work for.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/control-plane/lib.sh
source "$here/control-plane/lib.sh"
cd "$here/.."

profile=${1:-release}
revision=$(git rev-parse HEAD)
work=$(mktemp -d)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/operator-host/image
mkdir -p "$cache"

buildah=(buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run")
clean_up() {
    stop_job
    "${buildah[@]}" umount --all >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT

# What the Dockerfile names.
base=$(sed -n 's/^ARG BUILD_IMAGE=//p' Dockerfile)
[[ $base == docker.io/library/* ]] || fail "the Dockerfile's BUILD_IMAGE has no registry: $base"
suite=${base##*-}

check() { printf '    %s\n' "$1" >&2; }

make_base() {
    local root=$cache/$suite
    if [[ ! -d $root ]]; then
        rm -rf "$root.new"
        debootstrap --variant=minbase --include=ca-certificates,gcc,libc6-dev "$suite" "$root.new"
        mv -T "$root.new" "$root"
    fi
    local container sysroot
    sysroot=$(rustc --print sysroot)
    container=$("${buildah[@]}" from scratch)
    "${buildah[@]}" copy --quiet "$container" "$root" /
    "${buildah[@]}" copy --quiet "$container" "$sysroot/bin" /usr/local/rust/bin
    "${buildah[@]}" copy --quiet "$container" "$sysroot/lib" /usr/local/rust/lib
    "${buildah[@]}" config --env PATH=/usr/local/rust/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        --env CARGO_HOME=/usr/local/cargo --env CARGO_NET_OFFLINE=true "$container"
    "${buildah[@]}" commit --quiet --rm "$container" "$base"
}

build() {
    # The crates are mounted, not copied: the image that the Dockerfile begins with would download them.
    "${buildah[@]}" bud --isolation chroot --pull-never --layers=false \
        --volume "${CARGO_HOME:-$HOME/.cargo}/registry:/usr/local/cargo/registry" \
        --build-arg PROFILE="$profile" --build-arg REVISION="$revision" \
        --tag operator-host:test .
}

install_packages "to build the image without pulling any" buildah debootstrap
with_progress "Making $base of Debian's packages" "$work/base.log" make_base
with_progress "Building the image with the profile $profile" "$work/build.log" build

say "Looking into the image"
[[ $("${buildah[@]}" inspect --type image --format '{{.OCIv1.Config.User}}' operator-host:test) == 65532:65532 ]] ||
    fail "the image does not say that it runs as a user without privileges"
check "runs as 65532"
labels=$("${buildah[@]}" inspect --type image --format '{{.OCIv1.Config.Labels}}' operator-host:test)
for label in title description licenses version "revision:$revision"; do
    [[ $labels == *org.opencontainers.image.$label* ]] || fail "the label $label is not in $labels"
done
check "has the labels"
container=$("${buildah[@]}" from --pull-never operator-host:test)
root=$("${buildah[@]}" mount "$container")
programs=$(find "$root" -type f -perm /111 ! -name '*.so*')
[[ $programs == "$root/usr/local/bin/operator-host" ]] || fail "there is more to run than the host: $programs"
check "has one program, and no shell"
[[ -z $(find "$root" -perm /6000) ]] || fail "something has the set-user or set-group bit"
[[ -z $(find "$root" -name '*.wasm') ]] || fail "a plugin is baked in"
[[ -z $(find "$root" -newermt @1 -type f) ]] || fail "some files have the time of this build"
check "has no set-user bit, no plugin, no time of its build"
if grep -aqE '/usr/local/cargo/|/src/host/' "$root/usr/local/bin/operator-host"; then
    fail "the program names paths of its build"
fi
sbom=$root/usr/local/share/sbom/operator-host.cdx.json
python3 -m json.tool "$sbom" >/dev/null || fail "the list of what is in the image is not JSON"
for package in "$root"/var/lib/dpkg/status.d/*; do
    version=$(sed -n 's/^Version: //p' "$package" | sed 's/+/%2B/g; s/:/%3A/g')
    grep -q "\"pkg:deb/debian/${package##*/}@$version?" "$sbom" || fail "${package##*/} $version is not in $sbom"
done
crates=$(grep -c '"purl": "pkg:cargo/' "$sbom")
check "lists the $crates crates and the packages that it is made of"
size=$(stat --format %s "$root/usr/local/bin/operator-host")
[[ $profile != release ]] || ((size <= 27000000)) || fail "the program has $size bytes: at most 27 MB, or what made it grow?"
if [[ $profile == release && $(uname -m) == x86_64 ]]; then
    # The size is hexadecimal.
    hot=$((16#0$(readelf --section-headers --wide "$root/usr/local/bin/operator-host" |
        sed -n 's/.* \.text\.hot *PROGBITS *[0-9a-f]* *[0-9a-f]* *\([0-9a-f]*\) .*/\1/p')))
    ((hot >= 4000000 && hot <= 5500000)) ||
        fail "the functions that run are to take about 4.8 MB, and $hot bytes are side by side" "make order"
    check "has $hot bytes of functions that run side by side"
fi
check "is $(du -m --apparent-size "$root/usr/local/bin/operator-host" | cut -f1) MB of program in $(du -sm --apparent-size "$root" | cut -f1) MB"

say "Running it, unprivileged, on a read-only root, with the declared mounts only"
plugins=plugins/target/plugins
[[ -f $plugins/echo.wasm ]] || fail "there is no plugin to mount" "plugins/build.sh"
pod=$work/pod mounts=$work/mounts
mkdir -p "$pod" "$mounts"/{config,plugins,cache}
cp "$plugins"/*.wasm "$mounts/plugins/"
cp manifests/deploy/base/config/config.yaml "$mounts/config/"
chown -R 65532:65532 "$mounts/cache"
# The points that a container engine makes for the mounts of the Deployment.
mkdir -p "$root"/etc/operator-host/{config,plugins} "$root"/var/cache/operator-host "$root"/proc
# Within mounts of its own, so that nothing of this is left.
in_pod() {
    # The inner shell expands them.
    # shellcheck disable=SC2016
    unshare --mount --propagation private bash -euc '
        root=$0 mounts=$1 pod=$2
        shift 2
        mount --bind "$root" "$pod"
        for name in etc/operator-host/config:config etc/operator-host/plugins:plugins; do
            mount --bind "$mounts/${name#*:}" "$pod/${name%:*}"
            mount -o remount,bind,ro "$pod/${name%:*}"
        done
        mount --bind "$mounts/cache" "$pod/var/cache/operator-host"
        # Every container has one.
        mount --bind /proc "$pod/proc"
        mount -o remount,bind,ro "$pod"
        exec env -i OPERATOR_HOST_CONFIG=/etc/operator-host/config/config.yaml \
            OPERATOR_HOST_CACHE_DIR=/var/cache/operator-host OPERATOR_HOST_HEALTH_ADDR="$health" \
            KUBECONFIG=/etc/operator-host/config/kubeconfig \
            setpriv --no-new-privs "$(command -v chroot)" --userspec=65532:65532 --groups= "$pod" /usr/local/bin/operator-host "$@"
    ' "$root" "$mounts" "$pod" "$@"
}
export health=127.0.0.1:$((20000 + RANDOM % 10000))

in_pod --version >"$work/version"
[[ $(<"$work/version") == "operator-host "* ]] || fail "it does not say its version: $(<"$work/version")"
check "starts: $(<"$work/version")"
in_pod rbac >"$work/rights" 2>"$work/said" ||
    fail "it cannot read its configuration and plugins" "$(<"$work/said")"
diff <(grep -v '^#' manifests/deploy/base/rbac.yaml) <(grep -v '^#' "$work/rights") ||
    fail "the image prints other permissions than the deployed ones"
check "reads the mounted configuration and plugins, and prints the deployed permissions"

# An API server that is not there: the host is to live, compile its plugins into the cache and wait.
cat >"$mounts/config/kubeconfig" <<'END'
apiVersion: v1
kind: Config
current-context: away
contexts: [{name: away, context: {cluster: away, user: nobody}}]
clusters: [{name: away, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: nobody, user: {}}]
END
start_job in_pod run >"$work/host.log" 2>&1
deadline=$((SECONDS + 60))
until curl --silent --fail --output /dev/null "http://$health/livez" &&
    [[ $(find "$mounts/cache" -type f -size +10k | wc -l) -ge 4 ]]; do
    ((SECONDS < deadline)) || fail "the host does not live in its pod" "$(tail -n 20 "$work/host.log")"
    kill -0 "$job" 2>/dev/null || fail "the host ended" "$(tail -n 20 "$work/host.log")"
    sleep 0.2
done
check "lives, and has compiled its plugins into the only folder that it may write to"
host=$(pgrep --parent "$job" --full operator-host || echo "$job")
stat --format %u "/proc/$host" | grep -qx 65532 || fail "it runs as $(stat --format %u "/proc/$host")"
grep -q '^CapEff:.*0000000000000000$' "/proc/$host/status" || fail "it has capabilities: $(grep CapEff "/proc/$host/status")"
grep -q '^NoNewPrivs:.*1$' "/proc/$host/status" || fail "it could get new privileges"
check "runs as user 65532 without any capability"
kill -TERM "$host"
wait "$job" || fail "it did not end well when it was told to" "$(tail -n 20 "$work/host.log")"
job=''
check "ends well when it is told to"
say "The image is good"
