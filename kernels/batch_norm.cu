// Batch normalisation in the parts that statistics shared by ranks need: moments, normalise; sums, backward.
#include "columns.cuh"

// ---- moments ----

// Mean and Σ(x − mean)² of each part of the rows.
//
// One pass: of each channel the differences to the part's first number are added up, and their squares, so that little
// is lost where the mean is large beside the deviation.
template <class T>
__device__ inline void batch_norm_partials(const T *x, float *partials, Long rows, int channels, int parts) {
    const Column<T> own(channels);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    float values[2][WIDEST<T>] = {}, first[WIDEST<T>] = {};
    const auto add = [&](auto wide) {
        if (own.count == 0 || range.first == range.end) return;
        const auto shift = own.get(x, range.first, wide);
        for (int k = 0; k < own.N; ++k) first[k] = shift.number_at(k);
        sweep<2>(
            range.first + own.row, range.end, DEEP<T>, [&](int r) { return own.get(x, r, wide); },
            [&](int, const auto &pack) {
                for (int k = 0; k < own.N; ++k) {
                    const float d = pack.number_at(k) - first[k];
                    values[0][k] += d;
                    values[1][k] += d * d;
                }
            });
    };
    if (widest(x, channels)) add(Yes());
    else add(No());
    // Each channel's first number and sum go to where its square is.
    __shared__ float firsts[CHANNELS], sums[CHANNELS];
    if (own.row == 0)
        for (int k = 0; k < own.N; ++k) firsts[threadIdx.x * own.N + k] = first[k];
    const float n = (float)(range.end - range.first);
    float square = 0.0f;
    sum_rows(values, own, [&](int which, int channel, float sum) {
        if (which == 0) sums[channel % CHANNELS] = sum;
        else square = sum;
    });
    __syncthreads();
    const int c = threadIdx.x % CHANNELS, channel = blockIdx.x * CHANNELS + c;
    if (threadIdx.x / CHANNELS != 1 || channel >= channels) return;
    const float mean = n > 0.0f ? sums[c] / n : 0.0f;
    partials[(Long)blockIdx.y * channels + channel] = firsts[c] + mean;
    partials[((Long)parts + blockIdx.y) * channels + channel] = fmaxf(square - sums[c] * mean, 0.0f);
}

// Numbers of which there are n, their mean, and Σ(x − mean)².
struct Moments {
    f64 n, mean, square;
};

static __device__ inline Moments joined(Moments a, Moments b) {
    if (b.n == 0.0) return a;
    const f64 n = a.n + b.n, difference = b.mean - a.mean;
    return {n, a.mean + difference * (b.n / n), a.square + b.square + difference * difference * (a.n * b.n / n)};
}

// Where a convolution may have given sums in their place moments lie as those do, and the variance is below 0 (or −0).
static __device__ inline int sums_apart(int channels) { return (channels + 15) / 16 * 16; }

// Mean and variance of a channel, of either.
static __device__ inline void moments_of(float first, float second, f64 share, float &mean, float &variance) {
    if (__float_as_uint(second) >> 31) {
        mean = first;
        variance = -second;
        return;
    }
    const f64 middle = first * share, spread = second * share - middle * middle;
    mean = (float)middle;
    variance = spread < 0.0 ? 0.0f : (float)spread;
}

extern "C" __global__ void batch_norm_moments(const float *partials, float *moments, Long rows, int channels, int parts,
                                              int beside_sums) {
    require_block(JOIN_CHANNELS, JOIN_ROWS);
    __shared__ Moments all[JOIN_ROWS][JOIN_CHANNELS];
    const int c = blockIdx.x * JOIN_CHANNELS + threadIdx.x;
    Moments own = {0.0, 0.0, 0.0};
    if (c < channels) {
        ROLLED for (int part = threadIdx.y; part < parts; part += JOIN_ROWS) {
            const Rows range = part_rows(rows, part, parts);
            const f64 mean = partials[(Long)part * channels + c];
            const f64 square = partials[((Long)parts + part) * channels + c];
            own = joined(own, {(f64)(range.end - range.first), mean, square});
        }
    }
    all[threadIdx.y][threadIdx.x] = own;
    ROLLED for (int half = JOIN_ROWS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half)
            all[threadIdx.y][threadIdx.x] = joined(all[threadIdx.y][threadIdx.x], all[threadIdx.y + half][threadIdx.x]);
    }
    if (threadIdx.y != 0 || c >= channels) return;
    moments[c] = (float)all[0][threadIdx.x].mean;
    const float variance = (float)(all[0][threadIdx.x].square / (f64)rows);
    if (beside_sums) moments[sums_apart(channels) + c] = -variance;
    else moments[channels + c] = variance;
}
ENTRY(batch_norm_moments)

// The same from the sum of each channel and that of its squares, which a convolution gave along with its result, or
// from moments in their place. The difference of sums loses digits where the mean is large beside the deviation, as
// many as halves have lost by then.
extern "C" __global__ void batch_norm_moments_of_sums(const float *sums, float *moments, Long rows, int channels) {
    const f64 share = 1.0 / (f64)rows;
    each(channels, false, [&](Long c, auto) {
        moments_of(sums[c], sums[sums_apart(channels) + c], share, moments[c], moments[channels + c]);
    });
}
ENTRY(batch_norm_moments_of_sums)

// ---- normalise ----

// Of a batch whose R ranks have equal parts of `rows` each: what normalises it and moves the running statistics. Mean
// and variance are given, or found here of the ranks' moments (R,2,C), and then written. With 0 ranks the moments are
// one rank's sums, or beside such (`moments_of`).
struct Statistics {
    const float *moments;
    int ranks;
    float *mean, *variance;
    const float *running_mean, *running_variance;
    float *running_mean_after, *running_variance_after;
    float momentum;

    // Mean and variance of channel c; `writes`: whether this thread is the one to write them.
    __device__ inline void of(int c, int channels, Long rows, bool writes, float &m, float &v) const {
        if (moments == nullptr) {
            m = mean[c];
            v = variance[c];
            return;
        }
        f64 middle, spread;
        if (ranks <= 1) {
            m = moments[c];
            v = moments[(ranks == 0 ? sums_apart(channels) : channels) + c];
            if (ranks == 0) moments_of(m, v, 1.0 / (f64)rows, m, v);
            middle = m;
            spread = v;
        } else {
            f64 sum = 0.0, square = 0.0;
            ROLLED for (int r = 0; r < ranks; ++r) sum += moments[(Long)r * 2 * channels + c];
            middle = sum / ranks;
            ROLLED for (int r = 0; r < ranks; ++r) {
                const f64 away = moments[(Long)r * 2 * channels + c] - middle;
                square += moments[((Long)r * 2 + 1) * channels + c] + away * away;
            }
            spread = square / ranks;
            m = (float)middle;
            v = (float)spread;
        }
        if (!writes) return;
        mean[c] = m;
        variance[c] = v;
        if (running_mean == nullptr) return;
        const f64 n = (f64)(ranks == 0 ? 1 : ranks) * (f64)rows, share = momentum;
        running_mean_after[c] = (float)((1.0 - share) * running_mean[c] + share * middle);
        // What takes in the batch's variance is an estimate for all images: divided by n − 1.
        running_variance_after[c] = (float)((1.0 - share) * running_variance[c] + share * (spread * (n / (n - 1.0))));
    }
};

// What a thread's channels are normalised with.
template <int N> struct Norm {
    float mean[N], scale[N], shift[N];

    // Forward and backward must agree to the bit where a ReLU cuts.
    __device__ inline float of(int k, float x) const { return (x - mean[k]) * scale[k] + shift[k]; }
};

template <class T>
__device__ inline void batch_norm(const T *x, const T *residual, T *y, u8 *mask, const float *w, const float *b,
                                  float *kept, const Statistics &statistics, Long rows, int channels, float epsilon,
                                  bool relu) {
    const Column<T> own(channels);
    constexpr int N = WIDEST<T>;
    // These threads see all channels once.
    const bool writes = blockIdx.y == 0 && own.row == 0;
    Norm<N> norm = {};
    for (int k = 0; k < N; ++k) {
        const int c = own.first + k;
        if (k >= own.count) break;
        float variance;
        statistics.of(c, channels, rows, writes, norm.mean[k], variance);
        norm.scale[k] = w[c] / sqrtf(variance + epsilon);
        norm.shift[k] = b[c];
        if (writes && kept != nullptr) kept[c] = norm.shift[k];
    }
    // Conditions that are `Known` cost nothing.
    const auto go = [&](auto wide, auto add, auto cut) {
        if (own.count == 0) return;
        struct Item {
            Pack<T, N> x, residual;
        };
        // Two rows at a time where there is one thing to read.
        constexpr int AHEAD = WITHOUT<decltype(add)> ? 2 : 1;
        sweep_back<AHEAD>(
            own, (int)rows,
            [&](int r) {
                Item item = {own.get(x, r, wide), {}};
                if (add) item.residual = own.get(residual, r, wide);
                return item;
            },
            [&](int r, const Item &item) {
                float v[N];
                u32 positive = 0;
                for (int k = 0; k < N; ++k) {
                    v[k] = norm.of(k, item.x.number_at(k));
                    if (add) v[k] += item.residual.number_at(k);
                    if (cut) v[k] = fmaxf(v[k], 0.0f);
                    if (add && v[k] > 0.0f) positive |= 1u << k;
                }
                own.put(y, r, packed<N, T>(v), wide);
                if (add && mask != nullptr) mask[(Long)r * ((channels + N - 1) / N) + own.first / N] = (u8)positive;
            });
    };
    const bool wide = widest(x, channels) && aligned<T, N>(y) && aligned<T, N>(residual);
    if (!wide) go(No(), residual != nullptr, relu);
    else if (residual != nullptr) relu ? go(Yes(), Yes(), Yes()) : go(Yes(), Yes(), No());
    else relu ? go(Yes(), No(), Yes()) : go(Yes(), No(), No());
}

// For a convolution that normalises as it reads x: y = x·scale + shift, where scale and shift (2,C) are rounded. The
// shift is that of the rounded scale, so that the mean becomes b.
template <class T>
__device__ inline void batch_norm_scale(T *to, const float *w, const float *b, float *kept,
                                        const Statistics &statistics, Long rows, int channels, float epsilon) {
    each(channels, false, [&](Long c, auto) {
        float mean, variance;
        statistics.of((int)c, channels, rows, true, mean, variance);
        const T scale = Rounded<T>::of(w[c] / sqrtf(variance + epsilon));
        to[c] = scale;
        to[channels + c] = Rounded<T>::of(b[c] - mean * number(scale));
        if (kept != nullptr) kept[c] = b[c];
    });
}

// ---- backward ----

template <class T>
__device__ inline void batch_norm_sums(const T *dy, const T *x, const u8 *mask, const float *w, const float *b,
                                       const float *mean, const float *variance, T *dz, float *partials, Long rows,
                                       int channels, int parts, float epsilon, bool relu) {
    const Column<T> own(channels);
    constexpr int N = WIDEST<T>;
    Norm<N> norm = {};
    const auto deviation = [=](int c) { return sqrtf(variance[c] + epsilon); };
    own.numbers(mean, norm.mean);
    for (int k = 0; k < N; ++k)
        if (k < own.count) norm.scale[k] = w[own.first + k] / deviation(own.first + k);
    if (b != nullptr) own.numbers(b, norm.shift);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    float values[2][N] = {};
    // dy counts as 0 where a ReLU made y 0: that is told by what the forward kernel wrote, or y is computed again.
    const auto go = [&](auto wide, auto masked, auto again) {
        if (own.count == 0) return;
        struct Item {
            Pack<T, N> x, dy;
            u32 positive;
        };
        sweep<1>(
            range.first + own.row, range.end, DEEP<T>,
            [&](int r) {
                Item item = {own.get(x, r, wide), own.get(dy, r, wide), 0};
                if (masked) item.positive = mask[(Long)r * ((channels + N - 1) / N) + own.first / N];
                return item;
            },
            [&](int r, Item item) {
                for (int k = 0; k < N; ++k) {
                    const float v = item.x.number_at(k);
                    // What is kept is kept to the bit.
                    if (masked && !(item.positive >> k & 1)) item.dy.clear(k);
                    float d = item.dy.number_at(k);
                    if (again && !(norm.of(k, v) > 0.0f)) d = 0.0f;
                    values[0][k] += d;
                    values[1][k] += d * (v - norm.mean[k]);
                }
                if (masked) own.put(dz, r, item.dy, wide);
            });
    };
    const bool wide = widest(x, channels) && aligned<T, N>(dy) && aligned<T, N>(dz);
    if (mask != nullptr) wide ? go(Yes(), Yes(), No()) : go(No(), Yes(), No());
    else if (!wide) go(No(), No(), relu);
    else relu ? go(Yes(), No(), Yes()) : go(Yes(), No(), No());
    sum_rows(values, own, [&](int which, int channel, float sum) {
        if (which == 1) sum /= deviation(channel);
        partials[((Long)which * parts + blockIdx.y) * channels + channel] = sum;
    });
}

extern "C" __global__ void batch_norm_sums_join(const float *partials, float *sums, float *dw, float *db, int channels,
                                                int parts) {
    const int c = blockIdx.x * JOIN_CHANNELS + threadIdx.x;
    const f64 sum = sum_of_parts(partials, c, channels, parts);
    const f64 product = sum_of_parts(partials + (Long)parts * channels, c, channels, parts);
    if (threadIdx.y != 0 || c >= channels) return;
    sums[c] = (float)sum;
    sums[channels + c] = (float)product;
    if (db != nullptr) db[c] = (float)sum;
    if (dw != nullptr) dw[c] = (float)product;
}
ENTRY(batch_norm_sums_join)

template <class T>
__device__ inline void batch_norm_backward(const T *dy, const T *x, const float *w, const float *b, const float *mean,
                                           const float *variance, const float *sums, int ranks, T *dx, Long rows,
                                           int channels, float epsilon, bool relu) {
    const Column<T> own(channels);
    constexpr int N = WIDEST<T>;
    Norm<N> norm = {};
    // Means over the batch of dy, and of dy·x̂ over the deviation.
    float of_b[N] = {}, of_w[N] = {};
    const f64 share = 1.0 / ((f64)ranks * (f64)rows);
    for (int k = 0; k < N; ++k) {
        const int c = own.first + k;
        if (k >= own.count) break;
        const float deviation = sqrtf(variance[c] + epsilon);
        norm.mean[k] = mean[c];
        norm.scale[k] = w[c] / deviation;
        norm.shift[k] = relu ? b[c] : 0.0f;
        f64 sum = 0.0, product = 0.0;
        ROLLED for (int r = 0; r < ranks; ++r) {
            sum += sums[(Long)r * 2 * channels + c];
            product += sums[((Long)r * 2 + 1) * channels + c];
        }
        of_b[k] = (float)(sum * share);
        of_w[k] = (float)(product * share) / deviation;
    }
    const auto go = [&](auto wide, auto cut) {
        if (own.count == 0) return;
        struct Item {
            Pack<T, N> x, dy;
        };
        sweep_back<1>(
            own, (int)rows, [&](int r) { return Item{own.get(x, r, wide), own.get(dy, r, wide)}; },
            [&](int r, const Item &item) {
                float v[N];
                for (int k = 0; k < N; ++k) {
                    v[k] = item.x.number_at(k);
                    float d = item.dy.number_at(k);
                    if (cut && !(norm.of(k, v[k]) > 0.0f)) d = 0.0f;
                    v[k] = norm.scale[k] * (d - of_b[k] - (v[k] - norm.mean[k]) * of_w[k]);
                }
                own.put(dx, r, packed<N, T>(v), wide);
            });
    };
    const bool wide = widest(x, channels) && aligned<T, N>(dy) && aligned<T, N>(dx);
    if (!wide) go(No(), relu);
    else relu ? go(Yes(), Yes()) : go(Yes(), No());
}

#define BATCH_NORM(T, t)                                                                                               \
    extern "C" __global__ void __launch_bounds__(BLOCK)                                                                \
        batch_norm_partials_##t(const T *x, float *partials, Long rows, int channels, int parts) {                     \
        batch_norm_partials(x, partials, rows, channels, parts);                                                       \
    }                                                                                                                  \
    ENTRY(batch_norm_partials_##t)                                                                                     \
    extern "C" __global__ void __launch_bounds__(BLOCK) batch_norm_##t(                                                \
        const T *x, const T *residual, T *y, u8 *mask, const float *w, const float *b, float *kept,                    \
        const float *moments, int ranks, float *mean, float *variance, const float *running_mean,                      \
        const float *running_variance, float *running_mean_after, float *running_variance_after, float momentum,       \
        Long rows, int channels, float epsilon, int relu) {                                                            \
        const Statistics statistics = {moments,      ranks,            mean,                                           \
                                       variance,     running_mean,     running_variance,                               \
                                       running_mean_after, running_variance_after, momentum};                          \
        batch_norm(x, residual, y, mask, w, b, kept, statistics, rows, channels, epsilon, relu);                       \
    }                                                                                                                  \
    ENTRY(batch_norm_##t)                                                                                              \
    extern "C" __global__ void __launch_bounds__(BLOCK) batch_norm_scale_##t(                                          \
        T *to, const float *w, const float *b, float *kept, const float *moments, int ranks, float *mean,              \
        float *variance, const float *running_mean, const float *running_variance, float *running_mean_after,          \
        float *running_variance_after, float momentum, Long rows, int channels, float epsilon) {                       \
        const Statistics statistics = {moments,      ranks,            mean,                                           \
                                       variance,     running_mean,     running_variance,                               \
                                       running_mean_after, running_variance_after, momentum};                          \
        batch_norm_scale(to, w, b, kept, statistics, rows, channels, epsilon);                                         \
    }                                                                                                                  \
    ENTRY(batch_norm_scale_##t)                                                                                        \
    extern "C" __global__ void __launch_bounds__(BLOCK, 3) batch_norm_sums_##t(                                        \
        const T *dy, const T *x, const u8 *mask, const float *w, const float *b, const float *mean,                    \
        const float *variance, T *dz, float *partials, Long rows, int channels, int parts, float epsilon, int relu) {  \
        batch_norm_sums(dy, x, mask, w, b, mean, variance, dz, partials, rows, channels, parts, epsilon, relu);        \
    }                                                                                                                  \
    ENTRY(batch_norm_sums_##t)                                                                                         \
    extern "C" __global__ void __launch_bounds__(BLOCK, 3) batch_norm_backward_##t(                                    \
        const T *dy, const T *x, const float *w, const float *b, const float *mean, const float *variance,             \
        const float *sums, int ranks, T *dx, Long rows, int channels, float epsilon, int relu) {                       \
        batch_norm_backward(dy, x, w, b, mean, variance, sums, ranks, dx, rows, channels, epsilon, relu);              \
    }                                                                                                                  \
    ENTRY(batch_norm_backward_##t)

FOR_NUMBERS(BATCH_NORM)
