#!/usr/bin/env bash
# What `make dist` leaves builds where there is no network, and says its revision. The build is a release build, which
# takes some minutes; nothing but what lies in the tarball and on this machine is used.
#
# Usage: tests/dist.sh MPI    (make test-dist)
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
.ci/dist
(cd dist && sha256sum --check --quiet ./*.sha256)
tar xzf dist/*.tar.gz -C "$scratch"
tree=$(echo "$scratch"/dltrain-*)
eval "$(.ci/env "$1")"
alone=(unshare --user --map-root-user --net)
# Or the rest would prove nothing.
if "${alone[@]}" cargo search --limit 1 mpi >/dev/null 2>&1; then echo "test-dist: there is a network" >&2; exit 1; fi
# A cargo without crates of its own, too.
(cd "$tree" && env CARGO_HOME="$scratch/cargo" "${alone[@]}" cargo build --release --offline --locked --quiet)
said=$("$tree/target/release/dltrain" --version)
[[ $said == *"$(git rev-parse --short=12 HEAD)"* ]] || { echo "test-dist: it says $said" >&2; exit 1; }
python3 - "$tree" <<'END'
import json, pathlib, re, sys
tree = pathlib.Path(sys.argv[1])
named = {(c["name"], c["version"]) for c in json.loads((tree / "sbom.cdx.json").read_text())["components"]}
locked = set(re.findall(r'name = "(.+)"\nversion = "(.+)"\nsource', (tree / "Cargo.lock").read_text()))
assert named == locked, named ^ locked
text = (tree / "LICENSES.txt").read_text()
assert all(f"\n{name} {version}: " in text for name, version in named)
END
echo "test-dist: $said builds without a network"
