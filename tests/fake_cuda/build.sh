#!/usr/bin/env bash
# Builds the doubles of CUDA's libraries into a directory: put it first in LD_LIBRARY_PATH, and CUDA is there.
#
# Usage: tests/fake_cuda/build.sh DIRECTORY
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
to=$1
mkdir -p "$to"
# No contraction into fused multiply-adds, as on the GPU; halves are read as words, too.
flags=(-std=c++17 -O3 -ffp-contract=off -fno-strict-aliasing -fPIC -shared -Wall -Wno-unknown-pragmas
    -Wno-unused-function -Wno-sign-compare)
# In our kernels a misaligned wide access, which a GPU refuses, ends the process.
aligned=(-fsanitize=alignment -fsanitize-undefined-trap-on-error)

# build NAME SOURCE...: one library; it finds the driver's double beside itself.
build() {
    local name=$1
    shift
    "${CXX:-c++}" "${flags[@]}" "-Wl,-soname,$name" "-Wl,-rpath,\$ORIGIN" -o "$to/$name" "$@"
}

cd "$here"
build libplanted.so "${aligned[@]}" planted.cpp
build libaware.so aware.cpp
mkdir -p "$to/absent"
for name in libcuda.so.1 libcublasLt.so.13 libcublasLt.so.12; do (to=$to/absent; build $name absent.cpp); done
build libclock.so clock.cpp -ldl
clock=(-L"$to" -l:libclock.so)
build libcuda.so.1 "${aligned[@]}" driver.cpp calls.cpp kernels.cpp "${clock[@]}"
driver=(-L"$to" -l:libcuda.so.1 "${clock[@]}")
build libcublas.so.13 -DFAKE_CUBLAS_VERSION=130000 cublas.cpp "${driver[@]}"
build libcublas.so.12 -DFAKE_CUBLAS_VERSION=120900 cublas.cpp "${driver[@]}"
build libcudnn.so.9 cudnn.cpp "${driver[@]}"
build libnvidia-ml.so.1 nvml.cpp "${driver[@]}"
build libnccl.so.2 nccl.cpp "${driver[@]}"
for version in 12 13; do build "libcublasLt.so.$version" -x c++ /dev/null; done
for library in cuda cublas cublasLt cudnn nvidia-ml nccl; do
    newest=$(cd "$to" && printf '%s\n' "lib$library".so.* | sort -V | tail -n 1)
    ln -sf "$newest" "$to/lib$library.so"
done
