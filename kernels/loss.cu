// Softmax cross-entropy with label smoothing. A block has one row at a time.
#include "common.cuh"

// The largest logit of a row (of those that are numbers), and Σ exp(logit − largest).
struct Softmax {
    float largest, sum;
};

template <class T> static __device__ inline Softmax softmax(const T *row, int classes) {
    float largest = -infinity();
    ROLLED for (int k = threadIdx.x; k < classes; k += BLOCK) largest = fmaxf(largest, number(row[k]));
    largest = over_block<Larger>(largest);
    float sum = 0.0f;
    ROLLED for (int k = threadIdx.x; k < classes; k += BLOCK) sum += expf(number(row[k]) - largest);
    return {largest, over_block<Add>(sum)};
}

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

template <class T>
__device__ inline void softmax_cross_entropy(const T *logits, const int *labels, const int *others,
                                             const float *shares, float *losses, float *hits, float *hits5, int rows,
                                             int classes, float smoothing, float weight) {
    require_block(BLOCK, 1);
    ROLLED for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const T *row = logits + (Long)r * classes;
        const Aim aim(labels, others, shares, r);
        const int label = aim.dominant();
        float loss = 0.0f;
        int before = classes;
        if (aim.label >= classes || aim.other >= classes) {
            loss = __uint_as_float(0x7fc00000u);
        } else if (aim.label >= 0) {
            const Softmax soft = softmax(row, classes);
            const float own = number(row[label]);
            const float first = number(row[aim.label]), second = number(row[aim.other]);
            // A share of nothing, of a score that is not finite, is nothing.
            const float mean = aim.share >= 1.0f   ? first
                               : aim.share <= 0.0f ? second
                                                   : first + (1.0f - aim.share) * (second - first);
            float sum = 0.0f;
            int ahead = 0;
            ROLLED for (int k = threadIdx.x; k < classes; k += BLOCK) {
                const float v = number(row[k]);
                sum += v;
                // Of equals the first comes first.
                ahead += v > own || (v == own && k < label) ? 1 : 0;
            }
            sum = over_block<Add>(sum);
            ahead = over_block<Add>(ahead);
            const float target = (1.0f - smoothing) * mean + smoothing * (sum / classes);
            loss = weight * (soft.largest + logf(soft.sum) - target);
            before = is_nan(own) ? classes : ahead;
        }
        if (threadIdx.x != 0) continue;
        losses[r] = loss;
        hits[r] = before == 0 ? 1.0f : 0.0f;
        if (hits5 != nullptr) hits5[r] = before < 5 && before < classes ? 1.0f : 0.0f;
    }
}

template <class T>
__device__ inline void softmax_cross_entropy_backward(const T *logits, const int *labels, const int *others,
                                                      const float *shares, T *dlogits, int rows, int classes,
                                                      float smoothing, float weight, const Scalars *scalars) {
    require_block(BLOCK, 1);
    const float scale = weight * scalars->gradient_scale;
    ROLLED for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        const T *row = logits + (Long)r * classes;
        const Aim aim(labels, others, shares, r);
        const Softmax soft = softmax(row, classes);
        ROLLED for (int k = threadIdx.x; k < classes; k += BLOCK) {
            const float probability = expf(number(row[k]) - soft.largest) / soft.sum;
            const float target = (1.0f - smoothing) * aim.of(k) + smoothing / classes;
            const float value = aim.label < 0 ? 0.0f : (probability - target) * scale;
            dlogits[(Long)r * classes + k] = Rounded<T>::of(value);
        }
    }
}

#define LOSS(T, t)                                                                                                     \
    extern "C" __global__ void softmax_cross_entropy_##t(const T *logits, const int *labels, const int *others,        \
                                                         const float *shares, float *losses, float *hits,              \
                                                         float *hits5, int rows, int classes, float smoothing,         \
                                                         float weight) {                                               \
        softmax_cross_entropy(logits, labels, others, shares, losses, hits, hits5, rows, classes, smoothing, weight);  \
    }                                                                                                                  \
    ENTRY(softmax_cross_entropy_##t)                                                                                   \
    extern "C" __global__ void softmax_cross_entropy_backward_##t(const T *logits, const int *labels,                  \
                                                                  const int *others, const float *shares, T *dlogits,  \
                                                                  int rows, int classes, float smoothing,              \
                                                                  float weight, const Scalars *scalars) {              \
        softmax_cross_entropy_backward(logits, labels, others, shares, dlogits, rows, classes, smoothing, weight,      \
                                       scalars);                                                                       \
    }                                                                                                                  \
    ENTRY(softmax_cross_entropy_backward_##t)

FOR_NUMBERS(LOSS)
