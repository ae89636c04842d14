// Pooling: every output, and on the way back every input, gathers what belongs to it, so that bits repeat.
#include "common.cuh"

// x (n,height,width,channels) → y (n,out_height,out_width,channels).
struct Pool {
    int n, height, width, channels, out_height, out_width;
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
};

// first..end
struct Range {
    int first, end;
};

static __device__ inline int at_least(int a, int b) { return a > b ? a : b; }

static __device__ inline int at_most(int a, int b) { return a < b ? a : b; }

// The elements of an axis that window `at` covers.
static __device__ inline Range covered(int at, int kernel, int stride, int pad, int extent) {
    const int start = at * stride - pad;
    return {at_least(start, 0), at_most(at_least(start + kernel, 0), extent)};
}

// The windows of an axis that cover element `at`.
static __device__ inline Range covering(int at, int kernel, int stride, int pad, int windows) {
    const int past = at + pad - kernel + 1;
    return {past > 0 ? (past + stride - 1) / stride : 0, at_most((at + pad) / stride + 1, windows)};
}

// The elements that output `at` of adaptive pooling averages, and the outputs that average element `at`: the same
// formula both ways.
static __device__ inline Range adaptive(int at, int from, int to) {
    return {(int)((Long)at * from / to), (int)((((Long)at + 1) * from + to - 1) / to)};
}

// Calls f(sample, row, column, channel, Count) for each element of (n,height,width,channels), four channels at once where
// `wide`.
template <class F>
__device__ inline void each_pixel(int n, int height, int width, int channels, bool wide, F f) {
    const auto visit = [&](auto count) {
        const u32 groups = channels / count.value;
        const Long all = (Long)n * height * width * groups;
        each(all, false, [&](Long i, auto) {
            // A GPU divides 32 bits in a quarter of the time of 64.
            u32 pixel, group;
            if (all <= 0xffffffffLL) pixel = (u32)i / groups, group = (u32)i % groups;
            else pixel = (u32)(i / groups), group = (u32)(i % groups);
            const u32 line = pixel / width;
            f(line / height, line % height, pixel % width, group * count.value, count);
        });
    };
    if (wide && channels % 4 == 0) visit(Count<4>());
    else visit(Count<1>());
}

template <class T> __device__ inline void max_pool(const T *x, T *y, u8 *winners, Pool g) {
    if (g.kernel_h * g.kernel_w > 256) __trap();
    const bool wide = aligned(x) && aligned(y) && aligned(winners);
    each_pixel(g.n, g.out_height, g.out_width, g.channels, wide, [&](Long s, int i, int j, int c, auto count) {
        constexpr int N = count.value;
        const Range rows = covered(i, g.kernel_h, g.stride_h, g.pad_h, g.height);
        const Range columns = covered(j, g.kernel_w, g.stride_w, g.pad_w, g.width);
        const int top = i * g.stride_h - g.pad_h, left = j * g.stride_w - g.pad_w;
        float best[N];
        int winner[N];
        for (int k = 0; k < N; ++k) {
            best[k] = -infinity();
            winner[k] = (rows.first - top) * g.kernel_w + columns.first - left;
        }
        ROLLED for (int r = rows.first; r < rows.end; ++r) {
            ROLLED for (int q = columns.first; q < columns.end; ++q) {
                float v[N];
                load(x + ((s * g.height + r) * g.width + q) * g.channels + c, v);
                for (int k = 0; k < N; ++k) {
                    // NaN wins: a broken number must not hide.
                    if (v[k] > best[k] || is_nan(v[k])) {
                        best[k] = v[k];
                        winner[k] = (r - top) * g.kernel_w + q - left;
                    }
                }
            }
        }
        const Long at = ((s * g.out_height + i) * g.out_width + j) * g.channels + c;
        store(y + at, best);
        if (winners == nullptr) return;
        if constexpr (N == 4) {
            Four<u8> all;
            for (int k = 0; k < 4; ++k) all.at[k] = (u8)winner[k];
            *(Four<u8> *)(winners + at) = all;
        } else {
            winners[at] = (u8)winner[0];
        }
    });
}

template <class T> __device__ inline void max_pool_backward(const T *dy, const u8 *winners, T *dx, Pool g) {
    const bool wide = aligned(dy) && aligned(dx) && aligned(winners);
    each_pixel(g.n, g.height, g.width, g.channels, wide, [&](Long s, int r, int q, int c, auto count) {
        constexpr int N = count.value;
        const Range rows = covering(r, g.kernel_h, g.stride_h, g.pad_h, g.out_height);
        const Range columns = covering(q, g.kernel_w, g.stride_w, g.pad_w, g.out_width);
        float sum[N] = {};
        ROLLED for (int i = rows.first; i < rows.end; ++i) {
            ROLLED for (int j = columns.first; j < columns.end; ++j) {
                const int own = (r - i * g.stride_h + g.pad_h) * g.kernel_w + q - j * g.stride_w + g.pad_w;
                const Long at = ((s * g.out_height + i) * g.out_width + j) * g.channels + c;
                float v[N];
                u8 winner[N];
                load(dy + at, v);
                if constexpr (N == 4) {
                    const Four<u8> all = *(const Four<u8> *)(winners + at);
                    for (int k = 0; k < 4; ++k) winner[k] = all.at[k];
                } else {
                    winner[0] = winners[at];
                }
                for (int k = 0; k < N; ++k) sum[k] += winner[k] == own ? v[k] : 0.0f;
            }
        }
        store(dx + ((s * g.height + r) * g.width + q) * g.channels + c, sum);
    });
}

static __device__ inline float divisor(const Pool &g, Range rows, Range columns, bool include_padding) {
    if (include_padding) return (float)(g.kernel_h * g.kernel_w);
    return (float)((rows.end - rows.first) * (columns.end - columns.first));
}

// Adds up what of `x` (…,width,channels) lies in these rows and columns, for channels c….
template <int N, class T>
__device__ inline void sum_of(const T *x, Long first_row, int width, int channels, int c, Range rows, Range columns,
                              float (&sum)[N]) {
    ROLLED for (int r = rows.first; r < rows.end; ++r) {
        ROLLED for (int q = columns.first; q < columns.end; ++q) {
            float v[N];
            load(x + ((first_row + r) * width + q) * channels + c, v);
            for (int k = 0; k < N; ++k) sum[k] += v[k];
        }
    }
}

template <class T> __device__ inline void average_pool(const T *x, T *y, Pool g, bool include_padding) {
    each_pixel(g.n, g.out_height, g.out_width, g.channels, aligned(x) && aligned(y),
               [&](Long s, int i, int j, int c, auto count) {
                   const Range rows = covered(i, g.kernel_h, g.stride_h, g.pad_h, g.height);
                   const Range columns = covered(j, g.kernel_w, g.stride_w, g.pad_w, g.width);
                   float sum[count.value] = {};
                   sum_of(x, s * g.height, g.width, g.channels, c, rows, columns, sum);
                   for (float &v : sum) v /= divisor(g, rows, columns, include_padding);
                   store(y + ((s * g.out_height + i) * g.out_width + j) * g.channels + c, sum);
               });
}

template <class T> __device__ inline void average_pool_backward(const T *dy, T *dx, Pool g, bool include_padding) {
    each_pixel(g.n, g.height, g.width, g.channels, aligned(dx) && aligned(dy),
               [&](Long s, int r, int q, int c, auto count) {
                   const Range rows = covering(r, g.kernel_h, g.stride_h, g.pad_h, g.out_height);
                   const Range columns = covering(q, g.kernel_w, g.stride_w, g.pad_w, g.out_width);
                   float sum[count.value] = {};
                   ROLLED for (int i = rows.first; i < rows.end; ++i) {
                       ROLLED for (int j = columns.first; j < columns.end; ++j) {
                           const Range own_rows = covered(i, g.kernel_h, g.stride_h, g.pad_h, g.height);
                           const Range own_columns = covered(j, g.kernel_w, g.stride_w, g.pad_w, g.width);
                           float v[count.value];
                           load(dy + ((s * g.out_height + i) * g.out_width + j) * g.channels + c, v);
                           for (int k = 0; k < count.value; ++k)
                               sum[k] += v[k] / divisor(g, own_rows, own_columns, include_padding);
                       }
                   }
                   store(dx + ((s * g.height + r) * g.width + q) * g.channels + c, sum);
               });
}

template <class T> __device__ inline void adaptive_pool(const T *x, T *y, Pool g) {
    each_pixel(g.n, g.out_height, g.out_width, g.channels, aligned(x) && aligned(y),
               [&](Long s, int i, int j, int c, auto count) {
                   const Range rows = adaptive(i, g.height, g.out_height);
                   const Range columns = adaptive(j, g.width, g.out_width);
                   float sum[count.value] = {};
                   sum_of(x, s * g.height, g.width, g.channels, c, rows, columns, sum);
                   const float area = (float)((rows.end - rows.first) * (columns.end - columns.first));
                   for (float &v : sum) v /= area;
                   store(y + ((s * g.out_height + i) * g.out_width + j) * g.channels + c, sum);
               });
}

template <class T> __device__ inline void adaptive_pool_backward(const T *dy, T *dx, Pool g) {
    each_pixel(g.n, g.height, g.width, g.channels, aligned(dx) && aligned(dy),
               [&](Long s, int r, int q, int c, auto count) {
                   const Range rows = adaptive(r, g.out_height, g.height);
                   const Range columns = adaptive(q, g.out_width, g.width);
                   float sum[count.value] = {};
                   ROLLED for (int i = rows.first; i < rows.end; ++i) {
                       ROLLED for (int j = columns.first; j < columns.end; ++j) {
                           const Range own_rows = adaptive(i, g.height, g.out_height);
                           const Range own_columns = adaptive(j, g.width, g.out_width);
                           const int area =
                               (own_rows.end - own_rows.first) * (own_columns.end - own_columns.first);
                           float v[count.value];
                           load(dy + ((s * g.out_height + i) * g.out_width + j) * g.channels + c, v);
                           for (int k = 0; k < count.value; ++k) sum[k] += v[k] / (float)area;
                       }
                   }
                   store(dx + ((s * g.height + r) * g.width + q) * g.channels + c, sum);
               });
}

#define GEOMETRY                                                                                                       \
    int n, int height, int width, int channels, int out_height, int out_width, int kernel_h, int kernel_w,             \
        int stride_h, int stride_w, int pad_h, int pad_w
#define POOL                                                                                                           \
    Pool { n, height, width, channels, out_height, out_width, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w }
#define ADAPTIVE int n, int height, int width, int channels, int out_height, int out_width
#define ADAPTIVE_POOL                                                                                                  \
    Pool { n, height, width, channels, out_height, out_width }

#define POOLING(T, t)                                                                                                  \
    extern "C" __global__ void max_pool_##t(const T *x, T *y, u8 *winners, GEOMETRY) { max_pool(x, y, winners, POOL); } \
    ENTRY(max_pool_##t)                                                                                                \
    extern "C" __global__ void max_pool_backward_##t(const T *dy, const u8 *winners, T *dx, GEOMETRY) {                \
        max_pool_backward(dy, winners, dx, POOL);                                                                      \
    }                                                                                                                  \
    ENTRY(max_pool_backward_##t)                                                                                       \
    extern "C" __global__ void average_pool_##t(const T *x, T *y, GEOMETRY, int include_padding) {                     \
        average_pool(x, y, POOL, include_padding);                                                                     \
    }                                                                                                                  \
    ENTRY(average_pool_##t)                                                                                            \
    extern "C" __global__ void average_pool_backward_##t(const T *dy, T *dx, GEOMETRY, int include_padding) {          \
        average_pool_backward(dy, dx, POOL, include_padding);                                                          \
    }                                                                                                                  \
    ENTRY(average_pool_backward_##t)                                                                                   \
    extern "C" __global__ void adaptive_pool_##t(const T *x, T *y, ADAPTIVE) { adaptive_pool(x, y, ADAPTIVE_POOL); }   \
    ENTRY(adaptive_pool_##t)                                                                                           \
    extern "C" __global__ void adaptive_pool_backward_##t(const T *dy, T *dx, ADAPTIVE) {                              \
        adaptive_pool_backward(dy, dx, ADAPTIVE_POOL);                                                                 \
    }                                                                                                                  \
    ENTRY(adaptive_pool_backward_##t)

FOR_NUMBERS(POOLING)
