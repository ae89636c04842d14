# One word a task; `make help` lists them.
#
#   MPI=openmpi|mpich   which MPI: Open MPI if it is there or nothing is. On a cluster: MPICC, see `make deps`
#   FEATURES=static     build HDF5 along, in place of the system's
#   ARGS=…              flags added to `make run`
#   TESTS=…             of the tests only these: TESTS="ops restart::with_"
#   PROFILE=release     tests of the program as `make build` makes it
#   PARTS=…             of `make test-site` only these
#   PREFIX=…            where `make install` installs

ifeq ($(origin MPI),undefined)
MPI := $(shell .ci/env default)
MPIS := openmpi mpich
else
MPIS := $(MPI)
endif
export FEATURES PROFILE

WITH_MPI = eval "$$(.ci/env $(MPI))" &&
CHECK_FLAGS = --target-dir target/$(MPI) $(FEATURES:%=--features %)
CARGO_FLAGS = --release $(CHECK_FLAGS)
DLTRAIN = target/$(MPI)/release/dltrain
ARM = aarch64-unknown-linux-gnu
PREFIX ?= /usr/local
# What `make install` installs for.
HERE = $(if $(filter file,$(origin MPI)),$$(.ci/env here),$(MPI))

.PHONY: help deps build run test test-one test-full test-torchvision test-zoo test-tensorboard test-fields lint lint-text lint-arm kernels gpu-bundle gpu-minutes gpu-check gpu-bench bench bench-cpu bench-data bench-fields bench-checkpoint bench-hosts bench-strategies bench-tensor bench-elastic bench-pipeline bench-zero bench-collectives bench-predict bench-measured install uninstall dist test-dist test-site test-site-fast test-install fuzz clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

deps: ## install what is missing
	@.ci/deps $(MPI)

# oneDNN is loaded at run time: where the loader would not find it, it lies beside the executable.
build: deps ## build target/<mpi>/release/dltrain
	@$(WITH_MPI) cargo build $(CARGO_FLAGS) && \
	if [ -n "$$DLTRAIN_DNNL" ]; then ln -sfr "$$DLTRAIN_DNNL" $(dir $(DLTRAIN))libdnnl.so.3; fi

run: build ## train on the handwritten digits with two ranks
	@$(WITH_MPI) $$DLTRAIN_MPIRUN -n 2 $(DLTRAIN) --model mnist_small --data data/digits $(ARGS)

test: ## run every test, under the second MPI those that depend on it (docs/testing.md)
	@.ci/deps $(MPIS) tests slurm
	@set -e; list=; for mpi in $(MPIS); do .ci/test $$mpi $(or $(TESTS),$$list); list=@tests/second-mpi.txt; done
	@$(if $(TESTS),,$(MAKE) --no-print-directory test-install test-site-fast MPIS="$(MPIS)" PROFILE=$(PROFILE))

test-one: ## run tests under one MPI, as TESTS="ops restart::with_", or all of them
	@.ci/deps $(MPI) tests
	@.ci/test $(MPI) $(TESTS)

test-full: lint lint-arm ## what takes hours: models at full size, their memory, 500 combinations of flags, 128 ranks, nodes, 20 killed jobs; and every case of all tests, of the release build, under each MPI
	@.ci/deps $(MPI) tests slurm
	@PROFILE=release IGNORED=1 .ci/test $(MPI) full
	@set -e; for mpi in $(MPIS); do DLTRAIN_TEST_FULL=1 PROFILE=release .ci/test $$mpi; done

test-install: ## what `make install` leaves, with what is built, under launchers of Debian and of PyPI
	@.ci/deps $(MPIS) wheels
	@tests/install.sh $(MPIS)

test-torchvision: build ## weights to torchvision's models and back, for all of them (installs PyTorch: 5.5 GB; minutes)
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/torchvision/weights.py $$DLTRAIN_MPIRUN -n 2 $(DLTRAIN)

# What a network gives is written down by a test of the suite, which the scripts start.
SCENE = -- $$(cargo test $(CARGO_FLAGS) --no-run --test suite --message-format json-render-diagnostics | \
    sed -n 's/.*"name":"suite".*"executable":"\([^"]*\)".*/\1/p') --exact onnx::zoo::scene_of_networks --ignored

# Files that were exported are kept there, and what the table says is equal is not tried again: a run may be stopped.
KEPT ?= target/onnx-files

test-zoo: deps ## ONNX's own tests of nodes, and what torch.onnx.export makes of torchvision's 80 models and 100 of timm's (MODELS=A,timm/B WAYS=dynamo-fixed AGAIN=1), imported and compared with PyTorch (installs it: 5.5 GB; hours)
	@.ci/deps $(MPI) zoo onnxruntime
	@$(if $(MODELS),,$(WITH_MPI) .deps/torch/bin/python tests/torchvision/nodes.py \
	    --table benchmarks/results/onnx-nodes.txt $(SCENE))
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/torchvision/zoo.py --kept $(KEPT) \
	    --table benchmarks/results/onnx-exports.txt $(if $(MODELS),--models $(MODELS)) $(if $(WAYS),--ways $(WAYS)) \
	    $(if $(AGAIN),--again) $(SCENE)

test-tensorboard: build ## what --tensorboard writes, read by TensorBoard's own package (installs it)
	@.ci/deps $(MPI) tensorboard
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/tensorboard/bin/python tests/tensorboard/read.py $$DLTRAIN_MPIRUN -n 2 $(DLTRAIN)

test-fields: build ## arrays of files that others wrote (Met Office, CMIP6) and of published layouts, as h5py reads them, and trained from as by PyTorch (installs it: 5.5 GB; minutes)
	@.ci/deps $(MPI) fields zoo
	@$(WITH_MPI) .deps/fields/bin/python tests/fields/read.py $(DLTRAIN) .deps/fields/lib
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/fields/train.py $(DLTRAIN) $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/fields/cubes.py $(DLTRAIN) $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/fields/ops.py $(DLTRAIN) $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/fields/layouts.py $(DLTRAIN) .deps/fields/lib \
	    $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/torch/bin/python tests/fields/deepcam.py $(DLTRAIN) $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/fields/bin/python tests/fields/mllog.py $(DLTRAIN) $$DLTRAIN_MPIRUN -n 2
	@$(WITH_MPI) OMP_NUM_THREADS=1 .deps/fields/bin/python tests/fields/brain.py $(DLTRAIN) .deps/fields/lib \
	    $$DLTRAIN_MPIRUN -n 2

lint: lint-text ## check format, warnings, documentation, scripts, and which module uses which
	@$(WITH_MPI) cargo clippy $(CHECK_FLAGS) --workspace --all-targets -- -D warnings
	@$(WITH_MPI) RUSTDOCFLAGS="-D warnings" cargo doc $(CHECK_FLAGS) --no-deps --quiet -p dltrain -p dltrain-core

# Nothing is linked, so that what crates have in C may be compiled for this machine.
lint-text: deps ## of lint what compiles nothing
	@.ci/deps $(MPI) lint
	@.ci/lint

lint-arm: deps ## check that all of it compiles for ARM (GH200), too
	@rustup target list --installed 2>/dev/null | grep -qx $(ARM) || rustup target add $(ARM)
	@$(WITH_MPI) CC_$(subst -,_,$(ARM))=cc AR_$(subst -,_,$(ARM))=ar cargo check $(CHECK_FLAGS) --target $(ARM)

kernels: ## make the PTX of kernels/ anew, see that all GPUs' assemblers take it, and what they say of each kernel (installs NVRTC and tools: 550 MB; no GPU needed)
	@.ci/deps cuda
	@kernels/ptx.py
	@set -e; for gpu in 60 70 75; do \
	    .deps/cuda/ptxas -arch=sm_$$gpu kernels/dltrain.ptx -o /dev/null; echo "kernels: sm_$$gpu"; done
	@set -e; for gpu in 80 90 100 120; do \
	    .deps/cuda/ptxas -arch=sm_$$gpu kernels/dltrain.sm_80.ptx -o /dev/null; echo "kernels: sm_$$gpu"; done
	@kernels/sass.py
	@echo "kernels: kernels/kernels.tsv; docs/gpu.md wants the rows that 'make test-one TESTS=kernels::speed' names"

gpu-bundle: ## gpu-bundle/: what a bare machine with a GPU needs for the three below (builds HDF5 along; with the tracked files 31 MB)
	@.ci/gpu-bundle

gpu-minutes: ## on a machine with a GPU: what ten minutes teach, the most important first (gpu-bundle/ten-minutes)
	@.ci/gpu-bundle if-missing
	@gpu-bundle/ten-minutes $(ARGS)

gpu-check: ## on a machine with a GPU: everything that only a GPU can show (where there is no cargo: gpu-bundle/check)
	@.ci/gpu-bundle if-missing
	@gpu-bundle/check

gpu-bench: ## on a machine with a GPU and PyTorch: both side by side (gpu-bundle/bench)
	@.ci/gpu-bundle if-missing
	@gpu-bundle/bench

bench: build ## measure against PyTorch (installs it: 5.5 GB)
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) for benchmark in mnist_small start overlap; do benchmarks/$$benchmark/run.sh $(DLTRAIN); done

bench-cpu: build ## measure the large models against PyTorch's best (MODELS="resnet50 alexnet": an hour for all)
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) benchmarks/cpu/run.sh $(DLTRAIN)

bench-data: build ## measure decoding and preparing images against torchvision
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) benchmarks/data/run.sh $(DLTRAIN)

bench-fields: build ## measure reading samples of HDF5 files, and training from them, against h5py and PyTorch
	@.ci/deps $(MPI) zoo fields
	@$(WITH_MPI) benchmarks/fields/run.sh $(DLTRAIN)
	@$(WITH_MPI) benchmarks/fields/train.sh $(DLTRAIN) "$$(find .deps/fields/lib/ -name A1B_north_america.nc)"
	@$(WITH_MPI) benchmarks/fields/cubes.sh $(DLTRAIN)
	@$(WITH_MPI) benchmarks/fields/learned.sh $(DLTRAIN)

bench-checkpoint: build ## measure how much checkpoints disturb training (MODEL=resnet50)
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) benchmarks/checkpoint/run.sh $(DLTRAIN)

bench-hosts: build ## measure the allreduces between namespaces that act as hosts (root, Open MPI, iperf3)
	@$(WITH_MPI) benchmarks/hosts/run.sh $(DLTRAIN)

bench-strategies: build ## measure who updates what between namespaces that act as hosts (root, Open MPI, iperf3)
	@$(WITH_MPI) benchmarks/strategies/run.sh $(DLTRAIN)

bench-tensor: build ## measure split linear layers against plain data parallelism between namespaces that act as hosts (root, Open MPI)
	@$(WITH_MPI) benchmarks/strategies/tensor.sh $(DLTRAIN)

bench-elastic: build ## measure what a killed rank costs, against torchrun's elastic agent (installs PyTorch) and Horovod where it is there
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) benchmarks/elastic/run.sh $(DLTRAIN)

bench-pipeline: build ## measure a network in two stages against torch.distributed.pipelining (installs PyTorch)
	@.ci/deps $(MPI) torch
	@$(WITH_MPI) benchmarks/pipeline/run.sh $(DLTRAIN)

bench-zero: build ## measure gradients and parameters as shards against PyTorch's FSDP2 and DeepSpeed (root, Open MPI; installs both)
	@.ci/deps $(MPI) deepspeed
	@$(WITH_MPI) benchmarks/zero/run.sh $(DLTRAIN)

bench-collectives: ## measure the allreduces on one host against both MPIs and gloo (installs PyTorch)
	@.ci/deps openmpi mpich torch
	@$(MAKE) --no-print-directory build MPI=openmpi
	@$(MAKE) --no-print-directory build MPI=mpich
	@benchmarks/collectives/run.sh target/openmpi/release/dltrain target/mpich/release/dltrain

bench-predict: build ## hold predictions for up to 4,096 ranks to SimGrid's replay of the same steps (installs it)
	@.ci/deps $(MPI) simgrid
	@$(WITH_MPI) benchmarks/predict/run.sh $(DLTRAIN)

bench-measured: build ## measure steps between namespaces that act as hosts beside their predictions (root, Open MPI)
	@$(WITH_MPI) benchmarks/predict/measured.sh $(DLTRAIN)

install: ## put dltrain into PREFIX (/usr/local), for each MPI that is here, or for MPI
	@set -e; for mpi in $(HERE); do $(MAKE) --no-print-directory build MPI=$$mpi; done
	@.ci/install $(PREFIX) $(HERE)

dist: ## dist/dltrain-VERSION.tar.gz: the last commit with all crates, to be built without a network; checksum and SBOM
	@.ci/dist

test-dist: ## what make dist leaves builds in a network namespace that has none (minutes)
	@.ci/deps $(MPI)
	@tests/dist.sh $(MPI)

test-site: ## dltrain as sites install it: EasyBuild, ReFrame, containers (PARTS="easybuild"; root; an hour)
	@.ci/deps $(MPIS) wheels slurm
	@tests/site.sh $(PARTS)

test-site-fast: ## of test-dist and test-site what takes seconds: the tarball, a build without a network, ReFrame on one node (make test has it)
	@FAST=1 PROFILE=$(PROFILE) tests/dist.sh $(MPI)
	@FAST=1 DLTRAIN=$(CURDIR)/target/openmpi/$(or $(PROFILE:dev=debug),debug)/dltrain tests/site.sh reframe

uninstall: ## remove it from PREFIX
	@.ci/install --remove $(PREFIX)

fuzz: ## every parser against libFuzzer, 10 minutes each (TARGETS="idx tar" SECONDS=60; needs cargo-fuzz: cargo install cargo-fuzz)
	@$(WITH_MPI) fuzz/run.sh "$(TARGETS)" "$(or $(SECONDS),600)"

clean: ## remove what was built, not what was installed
	rm -rf target
