// Softmax cross-entropy with label smoothing: a block has a row of scores at a time, or, where classes are few, 32
// threads have one.
#include "common.cuh"

// Up to so many classes 32 threads have a row.
constexpr int FEW = 128;

// What a row shall give: a class, or two with the share of the first, where samples are mixed.
struct Aim {
    int label, other;
    float share;

    __device__ Aim(const int *labels, const int *others, const float *shares, int row)
        : label(labels[row]), other(label), share(1.0f) {
        if (others == nullptr || label < 0 || others[row] < 0) return;
        other = others[row];
        share = shares[row];
    }
    // The class that counts as right.
    __device__ int dominant() const { return share < 0.5f ? other : label; }
    __device__ float of(int k) const { return (k == label ? share : 0.0f) + (k == other ? 1.0f - share : 0.0f); }
};

// A row's sums over its classes: of exp(score − largest), of scores, and how many come before the right one.
struct Tally {
    float exponentials, scores;
    int ahead;

    static __device__ Tally join(Tally a, Tally b) {
        return {a.exponentials + b.exponentials, a.scores + b.scores, a.ahead + b.ahead};
    }
};

// Calls f(row, its scores, how many classes this thread looks at, whether it is the row's first thread) for the rows of
// this block. All threads come along, also where no row is left for them: then there are no classes.
template <int LANES, class T, class F> __device__ inline void each_row(const T *logits, int rows, int classes, F f) {
    require_block(BLOCK, 1);
    constexpr int AT_A_TIME = BLOCK / LANES;
    ROLLED for (int first = blockIdx.x * AT_A_TIME; first < rows; first += gridDim.x * AT_A_TIME) {
        const int r = first + threadIdx.x / LANES;
        f(r, logits + (Long)r * classes, r < rows ? classes : 0, r < rows && threadIdx.x % LANES == 0);
    }
}

// The largest of a row's scores that are numbers.
template <int LANES, class T> __device__ inline float largest_of(const T *row, int count) {
    float largest = -infinity();
    ROLLED for (int k = threadIdx.x % LANES; k < count; k += LANES) largest = fmaxf(largest, number(row[k]));
    return over_lanes<LANES, Larger>(largest);
}

// Adds up, where `label` is not of a class nothing is ahead.
template <int LANES, class T> __device__ inline Tally tally_of(const T *row, int count, float largest, int label) {
    Tally tally = {0.0f, 0.0f, 0};
    const float own = label >= 0 && label < count ? number(row[label]) : infinity();
    ROLLED for (int k = threadIdx.x % LANES; k < count; k += LANES) {
        const float v = number(row[k]);
        tally.exponentials += expf(v - largest);
        tally.scores += v;
        // Of equals the first comes first.
        tally.ahead += v > own || (v == own && k < label) ? 1 : 0;
    }
    return over_lanes<LANES, Tally>(tally);
}

// weight·(log Σ exp − what the target gives), of a row with a label.
template <class T>
__device__ inline float loss_of(const T *row, const Aim &aim, float largest, const Tally &tally, int classes,
                                float smoothing, float weight) {
    const float first = number(row[aim.label]), second = number(row[aim.other]);
    // A share of nothing, of a score that is not finite, is nothing.
    const float mean = aim.share >= 1.0f   ? first
                       : aim.share <= 0.0f ? second
                                           : first + (1.0f - aim.share) * (second - first);
    const float target = (1.0f - smoothing) * mean + smoothing * (tally.scores / classes);
    return weight * (largest + logf(tally.exponentials) - target);
}

template <int LANES, class T>
__device__ inline void losses_of(const T *logits, const int *labels, const int *others, const float *shares,
                                 float *losses, float *hits, float *hits5, int rows, int classes, float smoothing,
                                 float weight) {
    each_row<LANES>(logits, rows, classes, [&](int r, const T *row, int count, bool first) {
        const Aim aim(labels, others, shares, count > 0 ? r : 0);
        const int label = aim.dominant();
        const float largest = largest_of<LANES>(row, count);
        const Tally tally = tally_of<LANES>(row, count, largest, label);
        if (!first) return;
        const bool none = aim.label < 0, wrong = aim.label >= classes || aim.other >= classes;
        const float nan = __uint_as_float(0x7fc00000u);
        losses[r] = none ? 0.0f : wrong ? nan : loss_of(row, aim, largest, tally, classes, smoothing, weight);
        const int before = none || wrong || is_nan(number(row[label])) ? classes : tally.ahead;
        hits[r] = before == 0 ? 1.0f : 0.0f;
        if (hits5 != nullptr) hits5[r] = before < 5 && before < classes ? 1.0f : 0.0f;
    });
}

template <int LANES, class T>
__device__ inline void gradients_of(const T *logits, const int *labels, const int *others, const float *shares,
                                    T *dlogits, int rows, int classes, float smoothing, float scale) {
    each_row<LANES>(logits, rows, classes, [&](int r, const T *row, int count, bool) {
        const Aim aim(labels, others, shares, count > 0 ? r : 0);
        const float largest = largest_of<LANES>(row, count);
        const float sum = tally_of<LANES>(row, count, largest, -1).exponentials;
        ROLLED for (int k = threadIdx.x % LANES; k < count; k += LANES) {
            const float probability = expf(number(row[k]) - largest) / sum;
            const float target = (1.0f - smoothing) * aim.of(k) + smoothing / classes;
            const float value = aim.label < 0 ? 0.0f : (probability - target) * scale;
            dlogits[(Long)r * classes + k] = Rounded<T>::of(value);
        }
    });
}

#define LOSS(T, t)                                                                                                     \
    extern "C" __global__ void softmax_cross_entropy_##t(const T *logits, const int *labels, const int *others,        \
                                                         const float *shares, float *losses, float *hits,              \
                                                         float *hits5, int rows, int classes, float smoothing,         \
                                                         float weight) {                                               \
        if (classes <= FEW)                                                                                            \
            losses_of<32>(logits, labels, others, shares, losses, hits, hits5, rows, classes, smoothing, weight);      \
        else losses_of<BLOCK>(logits, labels, others, shares, losses, hits, hits5, rows, classes, smoothing, weight);  \
    }                                                                                                                  \
    ENTRY(softmax_cross_entropy_##t)                                                                                   \
    extern "C" __global__ void softmax_cross_entropy_backward_##t(const T *logits, const int *labels,                  \
                                                                  const int *others, const float *shares, T *dlogits,  \
                                                                  int rows, int classes, float smoothing,              \
                                                                  float weight, const Scalars *scalars) {              \
        const float scale = weight * scalars->gradient_scale;                                                          \
        if (classes <= FEW)                                                                                            \
            gradients_of<32>(logits, labels, others, shares, dlogits, rows, classes, smoothing, scale);                \
        else gradients_of<BLOCK>(logits, labels, others, shares, dlogits, rows, classes, smoothing, scale);            \
    }                                                                                                                  \
    ENTRY(softmax_cross_entropy_backward_##t)

FOR_NUMBERS(LOSS)

// Whether the host will find that the losses of a step add up to a finite number: it adds in f64, too.
extern "C" __global__ void check_losses(const float *losses, Long n, u32 *broken) {
    require_block(BLOCK, 1);
    f64 sum = 0.0;
    ROLLED for (Long i = threadIdx.x; i < n; i += BLOCK) sum += (f64)losses[i];
    sum = over_block<Add>(sum);
    if (threadIdx.x == 0 && !is_finite((float)sum)) *broken = 1;
}
ENTRY(check_losses)
