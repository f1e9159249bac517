#!/usr/bin/env bash
# Compares what the evaluator of rules says in a debug build, which panics on an overflow, and in a release build, which would
# wrap: tests/fuzz/profiles.sh [SEED]...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
verdicts() {
    VERDICTS=$1 SEED=$2 nice -n 19 cargo test --quiet "${@:3}" --package operator-host-schema --lib -- \
        --exact cel::rules::tests::no_expression_makes_the_evaluator_panic >/dev/null
}
(($#)) || set -- 1 2 3
for seed in "$@"; do
    verdicts "$folder/debug" "$seed"
    verdicts "$folder/release" "$seed" --release
    diff "$folder/debug" "$folder/release" || { echo "seed $seed: the profiles differ" >&2; exit 1; }
    echo "seed $seed: $(wc -l <"$folder/debug") expressions, the same in both profiles"
done
