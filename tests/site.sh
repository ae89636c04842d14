#!/usr/bin/env bash
# dltrain as a site's support team installs it (docs/site.md), each step by the tool that a site has for it: but for PBS
# and LSF nothing here is a double of a tool. Every part says what it ran, and one without its tool is skipped by name.
#
# Usage: tests/site.sh [PART…]    (make test-site) the files of tests/site/ without .sh; without PART all of them
#   SITE=DIR            where it works: the tarball, tools from PyPI, what was built (target/site; it goes on there)
#   SITE_OPT_LEVEL=N    how far builds are optimised: 0 where only the way matters, in 3 minutes of a core for each
set -uo pipefail
cd "$(dirname "$0")/.." || exit
export SITE=${SITE:-$PWD/target/site} ROOT=$PWD
mkdir -p "$SITE"
[ -z "${SITE_OPT_LEVEL:-}" ] || export CARGO_PROFILE_RELEASE_OPT_LEVEL=$SITE_OPT_LEVEL
parts=("$@")
[ $# -gt 0 ] || parts=(easybuild reframe containers batch shared)
declare -A outcome
for part in "${parts[@]}"; do
    [ -e "tests/site/$part.sh" ] || { echo "site: no part $part" >&2; exit 2; }
    echo "site: $part"
    "tests/site/$part.sh" >"$SITE/$part.log" 2>&1
    case $? in
        0) outcome[$part]=ok ;;
        77) outcome[$part]=SKIPPED ;;
        *) outcome[$part]=FAILED ;;
    esac
    grep '^site: ' "$SITE/$part.log"
    [ "${outcome[$part]}" != FAILED ] || tail -n 30 "$SITE/$part.log"
done
failed=0
for part in "${parts[@]}"; do
    echo "site: $part: ${outcome[$part]}"
    [ "${outcome[$part]}" != FAILED ] || failed=1
done
exit $failed
