// Batch normalisation in the parts that statistics shared by ranks need: moments, statistics, normalise; sums, backward.
#include "columns.cuh"

// ---- moments ----

// Mean and Σ(x − mean)² of each part of the rows.
//
// One pass: of each channel a thread adds up the differences to the first number it sees, and their squares, so that little is lost
// where the mean is large beside the deviation; then means and squares are joined (Chan, Golub and LeVeque, "Updating formulae and a
// pairwise algorithm for computing sample variances", 1979).
template <class T>
__device__ inline void batch_norm_partials(const T *x, float *partials, Long rows, int channels, int parts) {
    __shared__ float means[SIDE][CHANNELS], squares[SIDE][CHANNELS];
    const Column own = own_column(channels);
    const bool wide = wide_rows(x, channels);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    const Long start = range.first + threadIdx.y;
    float first[4] = {}, sum[4] = {}, square[4] = {};
    if (start < range.end) load_column(x + start * channels, own, wide, first);
    ROLLED for (Long r = start + SIDE; r < range.end; r += SIDE) {
        float v[4];
        load_column(x + r * channels, own, wide, v);
        for (int k = 0; k < 4; ++k) {
            const float d = v[k] - first[k];
            sum[k] += d;
            square[k] += d * d;
        }
    }
    const auto rows_of = [&](int y) {
        const Long left = range.end - range.first - y;
        return left > 0 ? (float)((left + SIDE - 1) / SIDE) : 0.0f;
    };
    const float own_rows = rows_of(threadIdx.y);
    for (int k = 0; k < 4; ++k) {
        const float shift = own_rows > 0.0f ? sum[k] / own_rows : 0.0f;
        means[threadIdx.y][threadIdx.x * 4 + k] = first[k] + shift;
        squares[threadIdx.y][threadIdx.x * 4 + k] = square[k] - sum[k] * shift;
    }
    __syncthreads();
    const int c = threadIdx.y * SIDE + threadIdx.x;
    const int channel = blockIdx.x * CHANNELS + c;
    if (c >= CHANNELS || channel >= channels) return;
    float n = 0.0f, mean = 0.0f, square_sum = 0.0f;
    ROLLED for (int y = 0; y < SIDE; ++y) {
        const float more = rows_of(y);
        if (more == 0.0f) break;
        const float all = n + more, difference = means[y][c] - mean;
        mean += difference * (more / all);
        square_sum += squares[y][c] + difference * difference * (n * more / all);
        n = all;
    }
    partials[(Long)blockIdx.y * channels + channel] = mean;
    partials[((Long)parts + blockIdx.y) * channels + channel] = square_sum;
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

extern "C" __global__ void batch_norm_moments(const float *partials, float *moments, Long rows, int channels,
                                              int parts) {
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
    moments[channels + c] = (float)(all[0][threadIdx.x].square / (f64)rows);
}
ENTRY(batch_norm_moments)

// The same from the sum of each channel and that of its squares, which a convolution gave along with its result. Their difference
// loses digits where the mean is large beside the deviation, as many as halves have lost by then.
extern "C" __global__ void batch_norm_moments_of_sums(const float *sum, const float *squares, float *moments, Long rows,
                                                      int channels) {
    each(channels, false, [&](Long c, auto) {
        const f64 mean = sum[c] / (f64)rows, variance = squares[c] / (f64)rows - mean * mean;
        moments[c] = (float)mean;
        moments[channels + c] = variance < 0.0 ? 0.0f : (float)variance;
    });
}
ENTRY(batch_norm_moments_of_sums)

// ---- statistics ----

extern "C" __global__ void batch_norm_statistics(const float *moments, int ranks, Long rows, int channels, float *mean,
                                                 float *variance, const float *running_mean,
                                                 const float *running_variance, float *running_mean_after,
                                                 float *running_variance_after, float momentum) {
    each(channels, false, [&](Long c, auto) {
        f64 m = 0.0, v = 0.0;
        ROLLED for (int r = 0; r < ranks; ++r) m += moments[(Long)r * 2 * channels + c];
        m /= ranks;
        ROLLED for (int r = 0; r < ranks; ++r) {
            const f64 away = moments[(Long)r * 2 * channels + c] - m;
            v += moments[((Long)r * 2 + 1) * channels + c] + away * away;
        }
        v /= ranks;
        mean[c] = (float)m;
        variance[c] = (float)v;
        if (running_mean == nullptr) return;
        const f64 n = (f64)ranks * (f64)rows, share = momentum;
        running_mean_after[c] = (float)((1.0 - share) * running_mean[c] + share * m);
        // What takes in the batch's variance is an estimate for all images: divided by n − 1.
        running_variance_after[c] = (float)((1.0 - share) * running_variance[c] + share * (v * (n / (n - 1.0))));
    });
}
ENTRY(batch_norm_statistics)

// ---- normalise ----

// What a thread's four channels are normalised with.
struct Norm {
    float mean[4], scale[4], shift[4];
    // One over the deviation; scale is w times it.
    float inverse[4];
};

// `b` may be null where no y is computed.
static __device__ inline Norm norm_of(Column own, const float *w, const float *b, const float *mean,
                                      const float *variance, float epsilon) {
    Norm norm = {};
    for (int k = 0; k < 4; ++k) {
        const int c = own.first + k;
        if (k >= own.count) break;
        const float deviation = sqrtf(variance[c] + epsilon);
        norm.mean[k] = mean[c];
        norm.scale[k] = w[c] / deviation;
        norm.shift[k] = b == nullptr ? 0.0f : b[c];
        norm.inverse[k] = 1.0f / deviation;
    }
    return norm;
}

// Forward and backward must agree to the bit where a ReLU cuts.
static __device__ inline float normalised(const Norm &norm, int k, float x) {
    return (x - norm.mean[k]) * norm.scale[k] + norm.shift[k];
}

template <class T>
__device__ inline void batch_norm(const T *x, const T *residual, T *y, const float *w, const float *b,
                                  const float *mean, const float *variance, Long rows, int channels, float epsilon,
                                  bool relu) {
    const Column own = own_column(channels);
    const bool wide = wide_rows(x, channels) && aligned(y) && aligned(residual);
    const Norm norm = norm_of(own, w, b, mean, variance, epsilon);
    ROLLED for (Long r = blockIdx.y * SIDE + threadIdx.y; r < rows; r += (Long)gridDim.y * SIDE) {
        float v[4], add[4] = {};
        load_column(x + r * channels, own, wide, v);
        if (residual != nullptr) load_column(residual + r * channels, own, wide, add);
        for (int k = 0; k < 4; ++k) {
            v[k] = normalised(norm, k, v[k]);
            if (residual != nullptr) v[k] += add[k];
            if (relu) v[k] = fmaxf(v[k], 0.0f);
        }
        store_column(y + r * channels, own, wide, v);
    }
}

// ---- backward ----

// dy as it was before the ReLU: 0 where y was not positive. y is read where it is kept, else computed again.
template <class T>
__device__ inline void load_gradient(const T *dy, const T *y, const Norm &norm, const float (&x)[4], Long row,
                                     Column own, bool wide, bool relu, float (&to)[4]) {
    load_column(dy + row, own, wide, to);
    if (!relu) return;
    float kept[4];
    if (y != nullptr) load_column(y + row, own, wide, kept);
    for (int k = 0; k < 4; ++k) {
        const float at = y != nullptr ? kept[k] : normalised(norm, k, x[k]);
        if (!(at > 0.0f)) to[k] = 0.0f;
    }
}

template <class T>
__device__ inline void batch_norm_sums(const T *dy, const T *x, const T *y, const float *w, const float *b,
                                       const float *mean, const float *variance, T *dz, float *partials, Long rows,
                                       int channels, int parts, float epsilon, bool relu) {
    const Column own = own_column(channels);
    const bool wide = wide_rows(x, channels) && aligned(dy) && aligned(y) && aligned(dz);
    const Norm norm = norm_of(own, w, relu ? b : nullptr, mean, variance, epsilon);
    const Rows range = part_rows(rows, blockIdx.y, parts);
    float sum[4] = {}, product[4] = {};
    ROLLED for (Long r = range.first + threadIdx.y; r < range.end; r += SIDE) {
        float v[4], d[4];
        load_column(x + r * channels, own, wide, v);
        load_gradient(dy, y, norm, v, r * channels, own, wide, relu, d);
        if (dz != nullptr) store_column(dz + r * channels, own, wide, d);
        for (int k = 0; k < 4; ++k) {
            sum[k] += d[k];
            product[k] += d[k] * ((v[k] - norm.mean[k]) * norm.inverse[k]);
        }
    }
    write_sums(sum, product, true, own, partials, channels, blockIdx.y, parts);
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
__device__ inline void batch_norm_backward(const T *dy, const T *x, const T *y, const float *w, const float *b,
                                           const float *mean, const float *variance, const float *sums, int ranks,
                                           T *dx, Long rows, int channels, float epsilon, bool relu) {
    const Column own = own_column(channels);
    const bool wide = wide_rows(x, channels) && aligned(dy) && aligned(y) && aligned(dx);
    const Norm norm = norm_of(own, w, relu ? b : nullptr, mean, variance, epsilon);
    const f64 n = (f64)ranks * (f64)rows;
    float of_b[4] = {}, of_w[4] = {};
    for (int k = 0; k < 4; ++k) {
        if (k >= own.count) break;
        f64 sum = 0.0, product = 0.0;
        ROLLED for (int r = 0; r < ranks; ++r) {
            sum += sums[(Long)r * 2 * channels + own.first + k];
            product += sums[((Long)r * 2 + 1) * channels + own.first + k];
        }
        of_b[k] = (float)(sum / n);
        of_w[k] = (float)(product / n);
    }
    ROLLED for (Long r = blockIdx.y * SIDE + threadIdx.y; r < rows; r += (Long)gridDim.y * SIDE) {
        float v[4], d[4];
        load_column(x + r * channels, own, wide, v);
        load_gradient(dy, y, norm, v, r * channels, own, wide, relu, d);
        for (int k = 0; k < 4; ++k)
            v[k] = norm.scale[k] * (d[k] - of_b[k] - (v[k] - norm.mean[k]) * norm.inverse[k] * of_w[k]);
        store_column(dx + r * channels, own, wide, v);
    }
}

#define BATCH_NORM(T, t)                                                                                               \
    extern "C" __global__ void batch_norm_partials_##t(const T *x, float *partials, Long rows, int channels,           \
                                                       int parts) {                                                    \
        batch_norm_partials(x, partials, rows, channels, parts);                                                       \
    }                                                                                                                  \
    ENTRY(batch_norm_partials_##t)                                                                                     \
    extern "C" __global__ void batch_norm_##t(const T *x, const T *residual, T *y, const float *w, const float *b,     \
                                              const float *mean, const float *variance, Long rows, int channels,       \
                                              float epsilon, int relu) {                                               \
        batch_norm(x, residual, y, w, b, mean, variance, rows, channels, epsilon, relu);                               \
    }                                                                                                                  \
    ENTRY(batch_norm_##t)                                                                                              \
    extern "C" __global__ void batch_norm_sums_##t(                                                                    \
        const T *dy, const T *x, const T *y, const float *w, const float *b, const float *mean, const float *variance, \
        T *dz, float *partials, Long rows, int channels, int parts, float epsilon, int relu) {                         \
        batch_norm_sums(dy, x, y, w, b, mean, variance, dz, partials, rows, channels, parts, epsilon, relu);           \
    }                                                                                                                  \
    ENTRY(batch_norm_sums_##t)                                                                                         \
    extern "C" __global__ void batch_norm_backward_##t(                                                                \
        const T *dy, const T *x, const T *y, const float *w, const float *b, const float *mean, const float *variance, \
        const float *sums, int ranks, T *dx, Long rows, int channels, float epsilon, int relu) {                       \
        batch_norm_backward(dy, x, y, w, b, mean, variance, sums, ranks, dx, rows, channels, epsilon, relu);           \
    }                                                                                                                  \
    ENTRY(batch_norm_backward_##t)

FOR_NUMBERS(BATCH_NORM)
