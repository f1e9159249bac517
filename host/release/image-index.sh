#!/usr/bin/env bash
# Joins the images of both architectures, as `image.sh` has pushed them, under the version: host/release/image-index.sh IMAGE.
# Prints the digest.
set -euo pipefail
image=$1
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tag=$image:$(host/release/version.sh)
docker buildx imagetools create --tag "$tag" "$tag-amd64" "$tag-arm64" >&2
docker buildx imagetools inspect "$tag" --format '{{.Manifest.Digest}}'
