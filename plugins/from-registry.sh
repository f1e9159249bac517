#!/usr/bin/env bash
# Moves the Echo sample to an OCI registry on this machine, for a host that runs, such as that of `make run`:
#
#   plugins/from-registry.sh
#
# It starts Debian's docker-registry, pushes Echo, and points the host's configuration at it. With Ctrl-C the registry
# ends, and the configuration is as before. CONFIG is the configuration (manifests/playground.yaml), REGISTRY_PORT the
# registry's port (5000), HOST the program operator-host (target/debug/operator-host).
set -euo pipefail

plugins=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$plugins")
config=${CONFIG:-$root/manifests/playground.yaml}
host=${HOST:-${CARGO_TARGET_DIR:-$root/target}/debug/operator-host}
registry=127.0.0.1:${REGISTRY_PORT:-5000}
plugin=$plugins/target/plugins/echo.wasm

die() { echo "plugins/from-registry.sh: $*" >&2; exit 1; }

command -v docker-registry >/dev/null || die "needs Debian's package docker-registry: apt-get install docker-registry"
[[ -x $host && -f $plugin ]] || die "start \`make run\` first: it builds the host and the plugins"
grep -q '^    plugin: echo.wasm$' "$config" || die "$config has no controller with \`plugin: echo.wasm\`"

folder=$(mktemp -d)
process=
changed=
clean_up() {
    [[ -z $changed ]] || cp -p "$folder/before.yaml" "$config"
    [[ -z $process ]] || kill "$process" 2>/dev/null || true
    rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 0' INT TERM

cat >"$folder/registry.yaml" <<END
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $folder/data}}
http: {addr: $registry}
END
docker-registry serve "$folder/registry.yaml" >"$folder/log" 2>&1 &
process=$!
until curl --silent --fail --output /dev/null "http://$registry/v2/"; do
    kill -0 "$process" 2>/dev/null || die "docker-registry does not start at $registry: $(tail -n 1 "$folder/log")"
    sleep 0.1
done
"$host" push --plain-http "$plugin" "$registry/samples/echo:1" >/dev/null

cp -p "$config" "$folder/before.yaml"
changed=yes
{
    echo "registry: {interval: 2s, plainHttp: ['$registry']}"
    sed "s|^    plugin: echo.wasm$|    plugin: oci://$registry/samples/echo:1|" "$folder/before.yaml"
} >"$folder/after.yaml"
cat "$folder/after.yaml" >"$config"

cat <<END
The host pulls Echo from oci://$registry/samples/echo:1 now. A new version for that tag:

  plugins/try.sh changed
  $host push --plain-http $plugin $registry/samples/echo:1

Ctrl-C ends the registry, and Echo comes from its file again.
END
# In the background, so that a signal is handled at once.
wait "$process" || die "docker-registry ended: $(tail -n 1 "$folder/log")"
