#!/usr/bin/env bash
# Makes the packages of the SDKs for JavaScript and Python, as npm and PyPI take them: host/release/sdks.sh FOLDER
#
# It needs npm, and Python with venv. The package `build` comes from PyPI, and takes its own tools from there.
set -euo pipefail
mkdir -p "$1"
folder=$(realpath "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(host/release/version.sh)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cp -r host/release/sdks/. "$work"
sed -i "s/@VERSION@/$version/" "$work/npm/package.json" "$work/pypi/pyproject.toml"
cp LICENSE plugins/echo-js/{operator-plugin.js,operator-plugin.d.ts,testing.mjs,testing.d.mts,build.mjs,plugin.wit} "$work/npm"
cp LICENSE plugins/echo-python/{operator_plugin.py,operator_types.py,plugin.wit} "$work/pypi"

npm pack --silent --pack-destination "$folder" "$work/npm" >&2
python3 -m venv "$work/venv"
"$work/venv/bin/pip" --quiet --disable-pip-version-check install build==1.3.0 >&2
"$work/venv/bin/python" -m build --outdir "$folder" "$work/pypi" >&2
printf '%s\n' "$folder/operator-plugin-$version.tgz" "$folder/operator_plugin-$version.tar.gz" \
    "$folder/operator_plugin-$version-py3-none-any.whl"
