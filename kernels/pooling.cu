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

// Calls f(sample, row, column, channel, Count) for each element of (n,height,width,channels), four channels at once
// where `wide`.
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
            Pack<u8, 4> all;
            for (int k = 0; k < 4; ++k) all.at[k] = (u8)winner[k];
            *(Pack<u8, 4> *)(winners + at) = all;
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
                    const Pack<u8, 4> all = *(const Pack<u8, 4> *)(winners + at);
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

// ---- the poolings of common networks: their geometry is known when they are compiled ----

// Calls f(sample, row, column, channel) for windows, or patches, of rows × columns a sample, with channels in groups of
// `group`. Any block and grid: threads side by side share channels, the others columns; blocks share columns (x), rows
// (y) and samples (z).
template <class F> __device__ inline void each_place(int samples, int rows, int columns, int channels, int group, F f) {
    ROLLED for (int s = blockIdx.z; s < samples; s += gridDim.z)
        ROLLED for (int i = blockIdx.y; i < rows; i += gridDim.y)
            ROLLED for (int j = blockIdx.x * blockDim.y + threadIdx.y; j < columns; j += gridDim.x * blockDim.y)
                ROLLED for (int c = threadIdx.x * group; c < channels; c += blockDim.x * group) f(s, i, j, c);
}

template <class T> __device__ inline void require_wide(const T *p, int channels) {
    if (!widest(p, channels)) __trap();
}

// The larger one, or NaN if either is.
static __device__ inline float larger(float a, float b) {
#if HAS_BF16_CONVERSIONS
    float to;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(to) : "f"(a), "f"(b));
    return to;
#else
    return b > a || is_nan(b) ? b : a;
#endif
}

template <int KERNEL, int STRIDE, int PAD, class T>
__device__ inline void max_pool_of(const T *x, T *y, u8 *winners, int n, int height, int width, int channels,
                                   int out_height, int out_width) {
    constexpr int N = WIDEST<T>;
    require_wide(x, channels);
    require_wide(y, channels);
    if (!aligned<u8, N>(winners)) __trap();
    each_place(n, out_height, out_width, channels, N, [&](int s, int i, int j, int c) {
        const int top = i * STRIDE - PAD, left = j * STRIDE - PAD;
        // What the window has beside the image counts as the nearest place in it, which it has too: all is read, and
        // nothing asked.
        const auto row = [&](int r) { return at_most(at_least(top + r, 0), height - 1); };
        const auto column = [&](int q) { return at_most(at_least(left + q, 0), width - 1); };
        const T *from = x + (Long)s * height * width * channels + c;
        const int line = width * channels;
        float best[N];
        int winner[N];
        for (int r = 0; r < KERNEL; ++r) {
            for (int q = 0; q < KERNEL; ++q) {
                const int place = (row(r) - top) * KERNEL + column(q) - left;
                float v[N];
                load(from + (row(r) * line + column(q) * channels), v);
                for (int k = 0; k < N; ++k) {
                    const bool first = r + q == 0;
                    // The first among equals. NaN wins: a broken number must not hide; which place counts as its own is
                    // left open.
                    winner[k] = first || !(v[k] <= best[k]) ? place : winner[k];
                    best[k] = first ? v[k] : larger(best[k], v[k]);
                }
            }
        }
        const Long at = (((Long)s * out_height + i) * out_width + j) * channels + c;
        store(y + at, best);
        if (winners == nullptr) return;
        Pack<u8, N> all;
        for (int k = 0; k < N; ++k) all.at[k] = (u8)winner[k];
        *(Pack<u8, N> *)(winners + at) = all;
    });
}

// The winners of N channels, a byte each.
template <int N> struct alignas(N) Winners {
    u32 words[N / 4];

    // Whether the winner of channel k has this place.
    __device__ inline bool is(int k, int place) const {
        const int shift = k % 4 * 8;
        return (words[k / 4] & 0xffu << shift) == (u32)place << shift;
    }
};

// A thread has as many neighbouring elements of dx as windows are apart, in both directions: all of them gather from
// the same windows.
template <int KERNEL, int STRIDE, int PAD, class T>
__device__ inline void max_pool_backward_of(const T *dy, const u8 *winners, T *dx, int n, int height, int width,
                                            int channels, int out_height, int out_width) {
    constexpr int N = WIDEST<T>, WINDOWS = (KERNEL + STRIDE - 1) / STRIDE;
    require_wide(dy, channels);
    require_wide(dx, channels);
    if (!aligned<u8, N>(winners)) __trap();
    const int rows = (height + PAD + STRIDE - 1) / STRIDE, columns = (width + PAD + STRIDE - 1) / STRIDE;
    each_place(n, rows, columns, channels, N, [&](int s, int p, int q, int c) {
        float sum[STRIDE][STRIDE][N] = {};
        // The windows that cover the patch, the first ones first. Of the patch's corner window (p,q) has place (0,0).
        UNROLLED for (int i = WINDOWS - 1; i >= 0; --i) {
            UNROLLED for (int j = WINDOWS - 1; j >= 0; --j) {
                if ((u32)(p - i) >= (u32)out_height || (u32)(q - j) >= (u32)out_width) continue;
                const Long at = (((Long)s * out_height + p - i) * out_width + q - j) * channels + c;
                float v[N];
                load(dy + at, v);
                const Winners<N> winner = *(const Winners<N> *)(winners + at);
                for (int a = 0; a < STRIDE; ++a) {
                    for (int b = 0; b < STRIDE; ++b) {
                        const int row = a + i * STRIDE, column = b + j * STRIDE;
                        if (row >= KERNEL || column >= KERNEL) continue;
                        for (int k = 0; k < N; ++k)
                            if (winner.is(k, row * KERNEL + column)) sum[a][b][k] += v[k];
                    }
                }
            }
        }
        for (int a = 0; a < STRIDE; ++a) {
            for (int b = 0; b < STRIDE; ++b) {
                const int r = p * STRIDE + a - PAD, t = q * STRIDE + b - PAD;
                if ((u32)r >= (u32)height || (u32)t >= (u32)width) continue;
                store(dx + (((Long)s * height + r) * width + t) * channels + c, sum[a][b]);
            }
        }
    });
}

// The mean of each sample's pixels. Any block and grid: threads side by side share channels, the others and blocks
// samples.
template <class T> __device__ inline void global_pool(const T *x, T *y, int n, int plane, int channels) {
    constexpr int N = WIDEST<T>;
    require_wide(x, channels);
    require_wide(y, channels);
    ROLLED for (int s = blockIdx.x * blockDim.y + threadIdx.y; s < n; s += gridDim.x * blockDim.y) {
        ROLLED for (int c = threadIdx.x * N; c < channels; c += blockDim.x * N) {
            const T *from = x + (Long)s * plane * channels + c;
            float sum[N] = {};
            ROLLED for (int p = 0; p < plane; p += 4) {
                // Four are read before one is added.
                Pack<T, N> all[4] = {};
                for (int k = 0; k < 4; ++k)
                    if (p + k < plane) all[k] = *(const Pack<T, N> *)(from + (Long)(p + k) * channels);
                for (int k = 0; k < 4; ++k)
                    for (int of = 0; of < N; ++of) sum[of] += all[k].number_at(of);
            }
            for (float &v : sum) v /= (float)plane;
            store(y + (Long)s * channels + c, sum);
        }
    }
}

// Any block and grid: blocks share samples (y) and pixels (x), threads channels and pixels.
template <class T> __device__ inline void global_pool_backward(const T *dy, T *dx, int n, int plane, int channels) {
    constexpr int N = WIDEST<T>;
    require_wide(dy, channels);
    require_wide(dx, channels);
    ROLLED for (int s = blockIdx.y; s < n; s += gridDim.y) {
        ROLLED for (int c = threadIdx.x * N; c < channels; c += blockDim.x * N) {
            float v[N];
            load(dy + (Long)s * channels + c, v);
            for (float &of : v) of /= (float)plane;
            const Pack<T, N> all = packed<N, T>(v);
            ROLLED for (int p = blockIdx.x * blockDim.y + threadIdx.y; p < plane; p += gridDim.x * blockDim.y)
                *(Pack<T, N> *)(dx + ((Long)s * plane + p) * channels + c) = all;
        }
    }
}

#define PLACES int n, int height, int width, int channels, int out_height, int out_width
#define POOLING_OF(T, t, name, kernel, stride, pad)                                                                    \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        max_pool_##name##_##t(const T *x, T *y, u8 *winners, PLACES) {                                                 \
        max_pool_of<kernel, stride, pad>(x, y, winners, n, height, width, channels, out_height, out_width);            \
    }                                                                                                                  \
    ENTRY(max_pool_##name##_##t)                                                                                       \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        max_pool_backward_##name##_##t(const T *dy, const u8 *winners, T *dx, PLACES) {                                \
        max_pool_backward_of<kernel, stride, pad>(dy, winners, dx, n, height, width, channels, out_height, out_width); \
    }                                                                                                                  \
    ENTRY(max_pool_backward_##name##_##t)

#define COMMON_POOLINGS(T, t)                                                                                          \
    POOLING_OF(T, t, 2x2s2, 2, 2, 0)                                                                                   \
    POOLING_OF(T, t, 3x3s2, 3, 2, 0)                                                                                   \
    POOLING_OF(T, t, 3x3s2p1, 3, 2, 1)                                                                                 \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        global_pool_##t(const T *x, T *y, int n, int plane, int channels) {                                            \
        global_pool(x, y, n, plane, channels);                                                                         \
    }                                                                                                                  \
    ENTRY(global_pool_##t)                                                                                             \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        global_pool_backward_##t(const T *dy, T *dx, int n, int plane, int channels) {                                 \
        global_pool_backward(dy, dx, n, plane, channels);                                                              \
    }                                                                                                                  \
    ENTRY(global_pool_backward_##t)

FOR_NUMBERS(COMMON_POOLINGS)

// ---- all others ----

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
    extern "C" __global__ void max_pool_##t(const T *x, T *y, u8 *winners, GEOMETRY) {                                 \
        max_pool(x, y, winners, POOL);                                                                                 \
    }                                                                                                                  \
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
