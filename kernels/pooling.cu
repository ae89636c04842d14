// Pooling: every output, and on the way back every input, gathers what belongs to it, so that bits repeat.
#include "common.cuh"

// x (n,from,channels) → y (n,to,channels): depth, height, width. Images have a depth of 1.
struct Pool {
    int n, from[3], channels, to[3];
    int kernel[3], stride[3], pad[3];
};

// first..end
struct Range {
    int first, end;

    __device__ inline int count() const { return end - first; }
};

// Plane, row, column.
struct Place {
    int of[3];

    // Where it lies in sample s, of samples of this size.
    __device__ inline Long in(Long s, const int (&size)[3]) const {
        return ((s * size[0] + of[0]) * size[1] + of[1]) * size[2] + of[2];
    }
};

// Planes, rows and columns.
struct Box {
    Range of[3];

    __device__ inline int count() const { return of[0].count() * of[1].count() * of[2].count(); }
};

// The box whose ranges f(axis) tells.
template <class F> __device__ inline Box box(F f) { return {{f(0), f(1), f(2)}}; }

template <class F> __device__ inline void each_of(const Box &box, F f) {
    ROLLED for (int d = box.of[0].first; d < box.of[0].end; ++d)
        ROLLED for (int h = box.of[1].first; h < box.of[1].end; ++h)
            ROLLED for (int w = box.of[2].first; w < box.of[2].end; ++w) f(Place{{d, h, w}});
}

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

// Calls f(sample, place, channel, Count) for each element of (n,size,channels), four channels at once where `wide`.
template <class F>
__device__ inline void each_element(int n, const int (&size)[3], int channels, bool wide, F f) {
    const auto visit = [&](auto count) {
        const u32 groups = channels / count.value;
        const Long all = (Long)n * size[0] * size[1] * size[2] * groups;
        each(all, false, [&](Long i, auto) {
            // A GPU divides 32 bits in a quarter of the time of 64.
            u32 pixel, group;
            if (all <= 0xffffffffLL) pixel = (u32)i / groups, group = (u32)i % groups;
            else pixel = (u32)(i / groups), group = (u32)(i % groups);
            const u32 line = pixel / size[2], plane = line / size[1];
            const Place place = {{(int)(plane % size[0]), (int)(line % size[1]), (int)(pixel % size[2])}};
            f((Long)(plane / size[0]), place, (int)(group * count.value), count);
        });
    };
    if (wide && channels % 4 == 0) visit(Count<4>());
    else visit(Count<1>());
}

// What of x window `at` of y covers.
static __device__ inline Box covered(const Pool &g, Place at) {
    return box([&](int a) { return covered(at.of[a], g.kernel[a], g.stride[a], g.pad[a], g.from[a]); });
}

// The windows of y that cover `at` of x.
static __device__ inline Box covering(const Pool &g, Place at) {
    return box([&](int a) { return covering(at.of[a], g.kernel[a], g.stride[a], g.pad[a], g.to[a]); });
}

// The place of `at` of x in window `of` of y.
static __device__ inline int place_in(const Pool &g, Place at, Place of) {
    const auto along = [&](int a) { return at.of[a] - of.of[a] * g.stride[a] + g.pad[a]; };
    return (along(0) * g.kernel[1] + along(1)) * g.kernel[2] + along(2);
}

template <class T> __device__ inline void max_pool(const T *x, T *y, u8 *winners, Pool g) {
    if (g.kernel[0] * g.kernel[1] * g.kernel[2] > 256) __trap();
    const bool wide = aligned(x) && aligned(y) && aligned(winners);
    each_element(g.n, g.to, g.channels, wide, [&](Long s, Place window, int c, auto count) {
        constexpr int N = count.value;
        const Box places = covered(g, window);
        const Place first = {{places.of[0].first, places.of[1].first, places.of[2].first}};
        float best[N];
        int winner[N];
        for (int k = 0; k < N; ++k) {
            best[k] = -infinity();
            winner[k] = place_in(g, first, window);
        }
        each_of(places, [&](Place at) {
            float v[N];
            load(x + at.in(s, g.from) * g.channels + c, v);
            for (int k = 0; k < N; ++k) {
                // NaN wins: a broken number must not hide.
                if (v[k] > best[k] || is_nan(v[k])) {
                    best[k] = v[k];
                    winner[k] = place_in(g, at, window);
                }
            }
        });
        const Long at = window.in(s, g.to) * g.channels + c;
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
    each_element(g.n, g.from, g.channels, wide, [&](Long s, Place place, int c, auto count) {
        constexpr int N = count.value;
        float sum[N] = {};
        each_of(covering(g, place), [&](Place window) {
            const int own = place_in(g, place, window);
            const Long at = window.in(s, g.to) * g.channels + c;
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
        });
        store(dx + place.in(s, g.from) * g.channels + c, sum);
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

static __device__ inline float divisor(const Pool &g, const Box &covered, bool include_padding) {
    if (include_padding) return (float)(g.kernel[0] * g.kernel[1] * g.kernel[2]);
    return (float)covered.count();
}

// The outputs of adaptive pooling that average element `at` of x, or what output `at` averages.
static __device__ inline Box adaptive(Place at, const int (&from)[3], const int (&to)[3]) {
    return box([&](int a) { return adaptive(at.of[a], from[a], to[a]); });
}

// y = the sum of the box of each window, by what it is divided by.
template <class T, class Covered, class Divisor>
__device__ inline void means(const T *x, T *y, const Pool &g, Covered covered, Divisor divisor) {
    each_element(g.n, g.to, g.channels, aligned(x) && aligned(y), [&](Long s, Place window, int c, auto count) {
        constexpr int N = count.value;
        const Box places = covered(window);
        float sum[N] = {};
        each_of(places, [&](Place at) {
            float v[N];
            load(x + at.in(s, g.from) * g.channels + c, v);
            for (int k = 0; k < N; ++k) sum[k] += v[k];
        });
        for (float &v : sum) v /= divisor(places);
        store(y + window.in(s, g.to) * g.channels + c, sum);
    });
}

// dx = the sum over the windows that cover each place, of their gradients by what each was divided by.
template <class T, class Covering, class Divisor>
__device__ inline void means_backward(const T *dy, T *dx, const Pool &g, Covering covering, Divisor divisor) {
    each_element(g.n, g.from, g.channels, aligned(dx) && aligned(dy), [&](Long s, Place place, int c, auto count) {
        constexpr int N = count.value;
        float sum[N] = {};
        each_of(covering(place), [&](Place window) {
            const float by = divisor(window);
            float v[N];
            load(dy + window.in(s, g.to) * g.channels + c, v);
            for (int k = 0; k < N; ++k) sum[k] += v[k] / by;
        });
        store(dx + place.in(s, g.from) * g.channels + c, sum);
    });
}

template <class T> __device__ inline void average_pool(const T *x, T *y, Pool g, bool include_padding) {
    means(x, y, g, [&](Place at) { return covered(g, at); },
          [&](const Box &places) { return divisor(g, places, include_padding); });
}

template <class T> __device__ inline void average_pool_backward(const T *dy, T *dx, Pool g, bool include_padding) {
    means_backward(dy, dx, g, [&](Place at) { return covering(g, at); },
                   [&](Place window) { return divisor(g, covered(g, window), include_padding); });
}

template <class T> __device__ inline void adaptive_pool(const T *x, T *y, Pool g) {
    means(x, y, g, [&](Place at) { return adaptive(at, g.from, g.to); },
          [&](const Box &places) { return (float)places.count(); });
}

template <class T> __device__ inline void adaptive_pool_backward(const T *dy, T *dx, Pool g) {
    means_backward(dy, dx, g, [&](Place at) { return adaptive(at, g.to, g.from); },
                   [&](Place window) { return (float)adaptive(window, g.from, g.to).count(); });
}

#define SIZES                                                                                                          \
    int n, int depth, int height, int width, int channels, int out_depth, int out_height, int out_width
#define GEOMETRY                                                                                                       \
    SIZES, int kernel_d, int kernel_h, int kernel_w, int stride_d, int stride_h, int stride_w, int pad_d, int pad_h,   \
        int pad_w
#define OF_SIZES n, {depth, height, width}, channels, {out_depth, out_height, out_width}
#define POOL                                                                                                           \
    Pool {                                                                                                             \
        OF_SIZES, {kernel_d, kernel_h, kernel_w}, {stride_d, stride_h, stride_w}, {pad_d, pad_h, pad_w}                \
    }

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
    extern "C" __global__ void adaptive_pool_##t(const T *x, T *y, SIZES) { adaptive_pool(x, y, Pool{OF_SIZES}); }     \
    ENTRY(adaptive_pool_##t)                                                                                           \
    extern "C" __global__ void adaptive_pool_backward_##t(const T *dy, T *dx, SIZES) {                                 \
        adaptive_pool_backward(dy, dx, Pool{OF_SIZES});                                                                \
    }                                                                                                                  \
    ENTRY(adaptive_pool_backward_##t)

FOR_NUMBERS(POOLING)
