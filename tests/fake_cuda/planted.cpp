// Two kernels that turn 64 numbers around: one waits before it reads what others have written, one does not.
#include "lanes.hpp"

template <bool waits> void turn(int *values) {
    __shared__ int all[64];
    all[threadIdx.x] = values[threadIdx.x];
    if (waits) __syncthreads();
    values[threadIdx.x] = all[63 - threadIdx.x];
}

// Whether the kernel did what it should.
extern "C" bool planted(bool waits, bool descending) {
    int values[64], *argument = values;
    for (int i = 0; i < 64; ++i) values[i] = i + 1;
    void *arguments[] = {&argument};
    void (*const invoke)(void **) = waits ? [](void **given) { turn<true>(*(int **)given[0]); }
                                          : [](void **given) { turn<false>(*(int **)given[0]); };
    lanes::launch("planted", invoke, {1, 1, 1}, {64, 1, 1}, arguments, descending);
    for (int i = 0; i < 64; ++i)
        if (values[i] != 64 - i) return false;
    return true;
}
