// Arrays as their files have them, numbers of 8 or 16 bits, become what tables say of each.
#include "common.cuh"

// Any grid: y stands for runs, x for the places of a run.
template <class Code>
__device__ inline void lookup(const Code *x, const int *samples, const float *which, const float *tables, float *y,
                              int n, int runs, Long length, int is_target) {
    constexpr Long CODES = (Long)1 << (8 * sizeof(Code));
    const float none = is_target ? __uint_as_float(0x7fc00000u) : 0.0f;
    ROLLED for (Long run = blockIdx.y; run < (Long)n * runs; run += gridDim.y) {
        const bool is_sample = samples[run / runs] >= 0;
        const float *table = tables + (Long)which[run % runs] * CODES;
        ROLLED for (Long i = (Long)blockIdx.x * blockDim.x + threadIdx.x; i < length; i += (Long)gridDim.x * blockDim.x)
            y[run * length + i] = is_sample ? table[x[run * length + i]] : none;
    }
}

#define LOOKUP(Code)                                                                                                   \
    extern "C" __global__ void lookup_##Code(const Code *x, const int *samples, const float *which,                    \
                                             const float *tables, float *y, int n, int runs, Long length,              \
                                             int is_target) {                                                          \
        lookup(x, samples, which, tables, y, n, runs, length, is_target);                                              \
    }                                                                                                                  \
    ENTRY(lookup_##Code)

LOOKUP(u8)
LOOKUP(u16)
