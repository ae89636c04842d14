// Sums over the rows of each column: a bias's gradient.
#include "columns.cuh"

template <class T> __device__ inline void column_sums(const T *x, float *partials, Long rows, int channels, int parts) {
    const Column own = own_column(channels);
    const bool wide = wide_rows(x, channels);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    float sum[4] = {}, none[4] = {};
    ROLLED for (Long r = range.first + threadIdx.y; r < range.end; r += SIDE) {
        float v[4];
        load_column(x + r * channels, own, wide, v);
        for (int k = 0; k < 4; ++k) sum[k] += v[k];
    }
    write_sums(sum, none, false, own, partials, channels, blockIdx.y, parts);
}

#define COLUMNS(T, t)                                                                                                  \
    extern "C" __global__ void column_sums_##t(const T *x, float *partials, Long rows, int channels, int parts) {      \
        column_sums(x, partials, rows, channels, parts);                                                               \
    }                                                                                                                  \
    ENTRY(column_sums_##t)

FOR_NUMBERS(COLUMNS)

extern "C" __global__ void column_sums_join(const float *partials, float *sums, int channels, int parts) {
    const int c = blockIdx.x * JOIN_CHANNELS + threadIdx.x;
    const f64 sum = sum_of_parts(partials, c, channels, parts);
    if (threadIdx.y == 0 && c < channels) sums[c] = (float)sum;
}
ENTRY(column_sums_join)
