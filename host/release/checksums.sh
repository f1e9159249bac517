#!/usr/bin/env bash
# Writes SHA256SUMS of all other files in a folder: host/release/checksums.sh FOLDER. `sha256sum --check SHA256SUMS` verifies
# them.
set -euo pipefail
cd "$1"
rm -f SHA256SUMS
sums=$(find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort | xargs --delimiter '\n' --no-run-if-empty sha256sum --)
[[ -n $sums ]] || {
    echo "there is no file in $1" >&2
    exit 1
}
echo "$sums" >SHA256SUMS
