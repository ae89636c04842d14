#!/usr/bin/env bash
# What `make dist` leaves builds where there is no network, and says its revision. The build is a release build, which
# takes some minutes; nothing but what lies in the tarball and on this machine is used.
#
# Usage: tests/dist.sh MPI    (make test-dist)
#   FAST=1    in seconds (make test): cargo finds all crates in the tarball, and what builds there is this tree, of
#             which PROFILE is built already
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -n "${FAST:-}" ] && ! { git rev-parse HEAD && cargo fetch --locked --quiet; } >/dev/null 2>&1; then
    echo "test-dist: SKIPPED: no repository of git's, or no network for crates of other systems"
    exit
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
name=dltrain-$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
.ci/dist
if [ -z "${FAST:-}" ]; then
    cp "dist/$name.tar.gz" "$scratch/first.tar.gz"
    .ci/dist
    cmp "dist/$name.tar.gz" "$scratch/first.tar.gz" # the same commit, the same bytes
fi
(cd dist && sha256sum --check --quiet "$name.tar.gz.sha256")
tar xzf "dist/$name.tar.gz" -C "$scratch"
tree=$scratch/$name
eval "$(.ci/env "$1")"
alone=(unshare --user --map-root-user --net)
# Or the rest would prove nothing.
if "${alone[@]}" cargo search --limit 1 mpi >/dev/null 2>&1; then echo "test-dist: there is a network" >&2; exit 1; fi
python3 - "$tree" <<'END'
import json, pathlib, re, sys
tree = pathlib.Path(sys.argv[1])
named = {(c["name"], c["version"]) for c in json.loads((tree / "sbom.cdx.json").read_text())["components"]}
locked = set(re.findall(r'name = "(.+)"\nversion = "(.+)"\nsource', (tree / "Cargo.lock").read_text()))
assert named == locked, named ^ locked
text = (tree / "LICENSES.txt").read_text()
assert all(f"\n{name} {version}: " in text for name, version in named)
END
# A cargo without crates of its own, too.
own=(env "CARGO_HOME=$scratch/cargo" "${alone[@]}" cargo)
if [ -n "${FAST:-}" ]; then
    (cd "$tree" && "${own[@]}" metadata --offline --locked --format-version 1 >/dev/null)
    profile=${PROFILE:-dev}
    # As .ci/test built it.
    [ "$profile" != dev ] || export RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc
    "${alone[@]}" cargo test --offline --locked --quiet --profile "$profile" --target-dir "target/$1" \
        ${FEATURES:+--features "$FEATURES"} --no-run -p dltrain -p dltrain-core --lib --bins --test isa --test suite
    echo "test-dist: $name has all crates, and this tree builds without a network"
    exit
fi
(cd "$tree" && "${own[@]}" build --release --offline --locked --quiet)
said=$("$tree/target/release/dltrain" --version)
[[ $said == *"$(git rev-parse --short=12 HEAD)"* ]] || { echo "test-dist: it says $said" >&2; exit 1; }
echo "test-dist: $said builds without a network"
