// To be loaded before an MPI library: answers in its place whether it is CUDA-aware, as FAKE_MPI_CUDA has it.
#include <cstdlib>

extern "C" int MPIX_Query_cuda_support() {
    const char *text = getenv("FAKE_MPI_CUDA");
    return text && *text == '1';
}
