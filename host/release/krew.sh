#!/usr/bin/env bash
# Prints the manifest by which krew installs the program as `kubectl operator-host`:
#
#   host/release/krew.sh FOLDER URL
#
# FOLDER has the archives, of which one for each architecture, and URL is where a release has them.
set -euo pipefail
folder=$(realpath "$1")
url=$2
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(host/release/version.sh)
cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: operator-host
spec:
  version: v$version
  homepage: https://operator-host.dev
  shortDescription: Explain, check and diff operators that are WebAssembly plugins
  description: |
    The program operator-host as a plugin of kubectl: explain the state of a custom resource and its children, preview
    what a plugin would change in the cluster, and write, render, check, pack and sign plugins.
  platforms:
END
found=
for architecture in amd64:x86_64 arm64:aarch64; do
    name=operator-host-$version-linux-${architecture#*:}
    archive=$folder/$name.tar.gz
    [[ -f $archive ]] || continue
    found=yes
    cat <<END
    - selector:
        matchLabels: {os: linux, arch: ${architecture%%:*}}
      uri: $url/$name.tar.gz
      sha256: $(sha256sum "$archive" | cut -d ' ' -f 1)
      files:
        - {from: $name/operator-host, to: .}
        - {from: $name/LICENSE, to: .}
      bin: operator-host
END
done
[[ -n $found ]] || {
    echo "there is no archive of version $version in $folder: archive.sh makes them" >&2
    exit 1
}
