#!/usr/bin/env bash
# Runs the fuzz targets under libFuzzer, one after the other: tests/fuzz/run.sh [SECONDS] [TARGET]...
#
# SECONDS (60) are for each target; without a TARGET it runs all. Inputs that reach something new are kept in the build's
# folder, and the next run goes on from them. An input for which a target fails is kept beside them, and its name printed:
# copy it into tests/fuzz/corpora/TARGET, where `make test` tries it from then on.
#
# The instruments come with the stable compiler: LLVM's pass, told by options, and no `cargo fuzz` or nightly is needed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

seconds=${1:-60}
shift || true
build=${CARGO_TARGET_DIR:-$PWD/../../target}/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# With --target these are for the program alone and not for build scripts and macros, which run while it is built.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares -Cforce-frame-pointers=yes"
# The same versions as everything else has.
cp ../../Cargo.lock coverage/Cargo.lock
nice -n 19 cargo build --quiet --manifest-path coverage/Cargo.toml --profile fuzz --target "$host" \
    --target-dir "$build" >&2
program=$build/$host/fuzz/fuzz-coverage
((seconds > 0)) || exit 0

mapfile -t targets < <(if (($#)); then printf '%s\n' "$@"; else ls corpora; fi)
status=0
for target in "${targets[@]}"; do
    found=$build/found/$target
    mkdir -p "$found/corpus"
    longest=$(sed -n "s/^    target(\"$target\", [a-z_:]*, \([0-9]* << [0-9]*\|[0-9]*\), .*/\1/p" src/lib.rs)
    log=$found/log
    # Within a time and an amount of memory each: a target that takes long or much is as wrong as one that panics.
    FUZZ_TARGET=$target nice -n 19 "$program" "$found/corpus" "corpora/$target" -max_total_time="$seconds" \
        -max_len="$((longest))" -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 \
        -artifact_prefix="$found/" >"$log" 2>&1 || status=1
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    covered=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf '%-12s %10s executions, %7s places covered, %4s inputs kept\n' "$target" "${executions:-0}" "${covered:-0}" \
        "$(find "$found/corpus" -type f | wc -l)"
    if grep -q 'Test unit written to' "$log"; then
        grep -E 'panicked at|ERROR: libFuzzer|Test unit written to' -A 1 "$log" | sed 's/^/    /'
    fi
done
exit "$status"
