#!/usr/bin/env bash
# Runs fuzz targets one after the other, each for some seconds, and says how many inputs each was given.
#
# Usage: run.sh "TARGET..." SECONDS    (make fuzz; no targets: all of them)
#
# What it finds lies in fuzz/artifacts/TARGET; put into fuzz/seeds/TARGET it is tried by `cargo test --test suite
# fuzz::` from then on.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=$2
read -ra targets <<<"$1"
if [ ${#targets[@]} = 0 ]; then
    mapfile -t targets < <(sed -n 's/^name = "\([a-z]*\)"$/\1/p' fuzz/Cargo.toml)
fi
if ! cargo fuzz --version >/dev/null 2>&1 || ! command -v c++ >/dev/null; then
    echo "fuzzing needs cargo-fuzz and a C++ compiler, for libFuzzer: cargo install cargo-fuzz" >&2
    exit 1
fi
# What counts the branches that an input takes is an unstable option, which the toolchain that builds dltrain has too.
export RUSTC_BOOTSTRAP=1

failed=0
for target in "${targets[@]}"; do
    mkdir -p "fuzz/corpus/$target"
    log=fuzz/corpus/$target.log
    # What new inputs lead to is kept in corpus/; the targets' own limit of memory is tighter than these. No sanitizer:
    # the parsers are safe Rust, and the C libraries behind HDF5 and JPEG are not built here.
    cargo fuzz run --sanitizer none "$target" "fuzz/corpus/$target" "fuzz/seeds/$target" -- \
        -max_total_time="$seconds" -timeout=20 -max_len=32768 -rss_limit_mb=2048 -malloc_limit_mb=512 \
        -print_final_stats=1 >"$log" 2>&1 || {
        failed=1
        grep -aE 'SUMMARY|panicked|Test unit written|error' "$log" >&2 || tail -n 20 "$log" >&2
    }
    printf '%-11s %12s inputs in %s s\n' "$target" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$seconds"
done
exit "$failed"
