// Sums over the rows of each column: a bias's gradient.
#include "columns.cuh"

template <class T> __device__ inline void column_sums(const T *x, float *partials, Long rows, int channels, int parts) {
    const Column<T> own(channels);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    float sum[1][WIDEST<T>] = {};
    const auto add = [&](auto wide) {
        if (own.count == 0) return;
        sweep<2>(
            range.first + own.row, range.end, DEEP<T>, [&](int r) { return own.get(x, r, wide); },
            [&](int, const auto &pack) {
                for (int k = 0; k < own.N; ++k) sum[0][k] += pack.number_at(k);
            });
    };
    if (widest(x, channels)) add(Yes());
    else add(No());
    sum_rows(sum, own, [&](int, int channel, float of) { partials[(Long)blockIdx.y * channels + channel] = of; });
}

#define COLUMNS(T, t)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        column_sums_##t(const T *x, float *partials, Long rows, int channels, int parts) {                             \
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
