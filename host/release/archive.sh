#!/usr/bin/env bash
# Makes the archive of a program, and the list of what it is made of beside it:
#
#   host/release/archive.sh PROGRAM MANUAL FOLDER
#
# MANUAL is the folder that the example `man` has written. The archive is of the machine's architecture, because the program
# prints its own completions. The same files give the same archive.
set -euo pipefail
program=$(realpath "$1")
manual=$(realpath "$2")
mkdir -p "$3"
folder=$(realpath "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$("$program" --version | cut -d ' ' -f 2)
name=operator-host-$version-linux-$(uname -m)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/$name/completions" "$work/$name/man"
install -m 755 "$program" "$work/$name/operator-host"
install -m 644 LICENSE CHANGELOG.md "$work/$name"
install -m 644 "$manual"/*.1 "$work/$name/man"
for shell in bash:operator-host zsh:_operator-host fish:operator-host.fish powershell:operator-host.ps1; do
    "$program" completions "${shell%%:*}" >"$work/$name/completions/${shell#*:}"
done
host/sbom.sh >"$folder/$name.cdx.json"
tar --create --directory "$work" --sort=name --format=gnu --mtime="@${SOURCE_DATE_EPOCH:-0}" --owner=0 --group=0 \
    --numeric-owner "$name" | gzip --no-name --best >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
