#!/usr/bin/env bash
# Builds and pushes the image of this machine's architecture, and takes the program out of it:
#
#   host/release/image.sh IMAGE REVISION FOLDER
#
# IMAGE has no tag: it gets the version and the architecture, as in `:0.1.0-amd64`. So the archive has the very program of the
# image. RELEASED_SDK is what `operator-host new` takes outside of a checkout.
set -euo pipefail
image=$1 revision=$2
mkdir -p "$3"
folder=$(realpath "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(host/release/version.sh)
case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) echo "there is no image for $(uname -m)" >&2 && exit 1 ;;
esac
tag=$image:$version-$architecture
docker build --build-arg VERSION="$version" --build-arg REVISION="$revision" \
    --build-arg RELEASED_SDK="${RELEASED_SDK:-}" --tag "$tag" . >&2
docker push "$tag" >&2
container=$(docker create "$tag")
docker cp "$container:/usr/local/bin/operator-host" "$folder/operator-host" >&2
docker rm "$container" >/dev/null
echo "$tag"
