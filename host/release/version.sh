#!/usr/bin/env bash
# Prints the version of these sources, and fails when they do not agree on it: host/release/version.sh [TAG]. A release has
# the tag `v` and the version, and a section of that version in the changelog.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
for place in plugins/Cargo.toml:'^version = ' manifests/helm/Chart.yaml:'^version: ' manifests/helm/Chart.yaml:'^appVersion: ' \
    Dockerfile:'^ARG VERSION='; do
    file=${place%%:*} pattern=${place#*:}
    if ! grep -m 1 "$pattern" "$file" | grep -Fq "$version"; then
        echo "$file has another version than $version of Cargo.toml: $(grep -m 1 "$pattern" "$file")" >&2
        exit 1
    fi
done
if [[ $# -gt 0 ]]; then
    if [[ $1 != "v$version" ]]; then
        echo "the tag $1 is not v$version, the version in Cargo.toml: change one of them" >&2
        exit 1
    fi
    if ! grep -Eq "^## \[?${version//./\\.}\b" CHANGELOG.md; then
        echo "CHANGELOG.md has no section $version: rename Unreleased" >&2
        exit 1
    fi
fi
echo "$version"
