#!/usr/bin/env bash
# Prints the section of this version in the changelog: host/release/notes.sh [VERSION].
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=${1:-$(host/release/version.sh)}
notes=$(awk -v version="$version" '
    /^## / { inside = index($2, version) == 1 || index($2, "[" version "]") == 1; next }
    inside' CHANGELOG.md)
if [[ -z ${notes//[[:space:]]/} ]]; then
    echo "CHANGELOG.md has no section $version, or an empty one" >&2
    exit 1
fi
printf '%s\n' "$notes"
