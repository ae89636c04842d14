#!/usr/bin/env bash
# The easyconfigs of jobs/site/easybuild, by EasyBuild and Lmod, with this machine's MPIs and HDF5 as external modules,
# without a network; then what is installed runs from its module, and its sanity checks can fail.
# shellcheck source=tests/site/common.sh
source "$(dirname "$0")/common.sh"

packages lmod tcl || skip "Lmod: no package lmod could be installed"
from_pypi easybuild || skip "EasyBuild: pip install easybuild failed"
tarball
site_modules
use_modules
# EasyBuild asks for a module command by name.
export LMOD_CMD OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
PATH=$SITE/easybuild/bin:$PATH
eb=(alone "$SITE/easybuild/bin/eb" --modules-tool=Lmod --prefix="$SITE/software" --sourcepath="$SITE" --parallel=2
    --allow-use-as-root-and-accept-consequences)
rm -rf "$SITE/easyconfigs"
cp -r "$ROOT/jobs/site/easybuild" "$SITE/easyconfigs"
for mpi in openmpi mpich; do
    config=$SITE/easyconfigs/dltrain-$VERSION-$mpi.eb
    "${eb[@]}" --inject-checksums=sha256 "$config"
    grep -q "$(cut -d' ' -f1 "$TARBALL.sha256")" "$config"
    "${eb[@]}" "$config"
    "${eb[@]}" --sanity-check-only "$config"
    said=$(module purge && module load "dltrain/$VERSION-$mpi" && cd "$SITE" &&
        mpirun -n 2 dltrain --model mnist_small --batch 32 --steps 20)
    grep -q "^total images/sec" <<<"$said"
    lmod=$(module --version 2>&1 | sed -n 's/.*Version \([0-9.]*\).*/\1/p')
    say "$(eb --version | sed 's/This is //; s/ (.*//'), Lmod $lmod:" \
        "dltrain/$VERSION-$mpi built without a network, checks passed; from its module $(grep '^total' <<<"$said")"
done
# The same installation with a check that cannot hold.
sed 's/2 on 1 node/3 on 1 node/' "$SITE/easyconfigs/dltrain-$VERSION-mpich.eb" >"$SITE/wrong.eb"
if "${eb[@]}" --sanity-check-only "$SITE/wrong.eb"; then say "a check that cannot hold passed"; exit 1; fi
say "a sanity check that cannot hold fails"
