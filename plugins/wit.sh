#!/usr/bin/env bash
# Writes the contract beside the SDKs that need it in one file, from the files in wit/: plugins/wit.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

cat ../wit/world.wit ../wit/types.wit ../wit/logging.wit ../wit/reconciler.wit >echo-python/plugin.wit

# The random numbers of QuickJS are those of the build, so its SDK asks for others.
{
    sed 's|^    import logging;|&\n    import wasi:random/insecure@0.2.0;|' echo-python/plugin.wit
    cat <<'WIT'

package wasi:random@0.2.0 {
    interface insecure {
        get-insecure-random-u64: func() -> u64;
    }
}
WIT
} >echo-js/plugin.wit
