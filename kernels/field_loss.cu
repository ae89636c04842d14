// Losses and metrics of fields: outputs (n,channels,points) and targets of any number of points. Sums of a sample are
// made in parts, which are joined in their order.
#include "common.cuh"

// As `config::Loss` and `config::Metric` have them.
constexpr int BCE = 1, MSE = 2, MAE = 3, HUBER = 4, OUTPUT = 5;
constexpr int OF_ACCURACY = 0, OF_IOU = 1, OF_MAE = 2, OF_R2 = 4, OF_TOP5 = 5;

// What a part has before the sums of its metric: losses and points with a target.
constexpr int BEFORE = 2;

// Classes that are counted at a time.
constexpr int WINDOW = 128;

// The points of part `part` of `parts`.
struct Part {
    Long begin, end;

    __device__ Part(Long points, int part, int parts) {
        const Long each = (points + parts - 1) / parts;
        begin = part * each;
        end = begin + each < points ? begin + each : points;
    }
};

// Targets of samples, which are `apart` numbers apart: behind those of the points is what these weigh, where that is
// said: as many numbers, or as many as the points of a channel.
struct Targets {
    const float *values;
    Long points, apart;

    __device__ float value(Long sample, Long i) const { return values[sample * apart + i]; }

    __device__ float weight(Long sample, Long i) const {
        return apart == points ? 1.0f : values[sample * apart + points + i % (apart - points)];
    }
};

// What the scores of a point come to; `scores` is their sum, each times its class's weight, and `weights` that of these.
struct Scores {
    float largest, exponentials, scores, weights;
    int found;

    // `at` is that of the first channel; the others are `points` apart.
    __device__ Scores(const float *at, int channels, Long points, const float *of_classes)
        : largest(-infinity()), exponentials(0.0f), scores(0.0f), weights(0.0f), found(0) {
        ROLLED for (int k = 0; k < channels; ++k) {
            const float v = at[k * points];
            if (v > largest) {
                largest = v;
                found = k;
            }
        }
        ROLLED for (int k = 0; k < channels; ++k) {
            const float v = at[k * points] - largest;
            const float weight = of_classes == nullptr ? 1.0f : of_classes[k];
            exponentials += expf(v);
            scores += weight * v;
            weights += weight;
        }
        // No class is found among scores that are no numbers.
        if (is_nan(exponentials)) found = channels;
    }
};

// The class of a target: below 0 without one, `channels` where it names none.
static __device__ inline int class_of(float target, int channels) {
    if (is_nan(target)) return -1;
    const int label = target >= 0.0f && target < (float)channels ? (int)target : channels;
    return (float)label == target ? label : channels;
}

// labels = the classes of targets.
extern "C" __global__ void field_labels(const float *target, int *labels, Long n, int classes) {
    each(n, false, [&](Long i, auto) { labels[i] = class_of(target[i], classes); });
}
ENTRY(field_labels)

// The sums of a block's part, of which every thread has some.
struct ClassSums {
    float loss, count, right;

    static __device__ ClassSums join(ClassSums a, ClassSums b) {
        return {a.loss + b.loss, a.count + b.count, a.right + b.right};
    }
};

static __device__ inline ClassSums class_sums(const float *output, Targets target, int sample, const float *weights,
                                              Part part, int channels, float smoothing, int metric) {
    const Long points = target.points;
    ClassSums sums = {0.0f, 0.0f, 0.0f};
    ROLLED for (Long i = part.begin + threadIdx.x; i < part.end; i += BLOCK) {
        const int label = class_of(target.value(sample, i), channels);
        if (label < 0) continue;
        const Scores scores(output + i, channels, points, weights);
        const bool wrong = label >= channels;
        const float own = output[(wrong ? 0 : label) * points + i] - scores.largest;
        const float of_class = wrong ? __uint_as_float(0x7fc00000u) : weights == nullptr ? 1.0f : weights[label];
        const float all = logf(scores.exponentials), share = smoothing / channels;
        const float weight = target.weight(sample, i);
        sums.loss += weight * ((1.0f - smoothing) * of_class * (all - own) +
                               share * (scores.weights * all - scores.scores));
        sums.count += weight;
        bool right = scores.found == label;
        if (metric == OF_TOP5 && !wrong && scores.found < channels) {
            int before = 0;
            ROLLED for (int k = 0; k < channels; ++k) {
                const float v = output[k * points + i] - scores.largest;
                before += v > own || (v == own && k < label) ? 1 : 0;
            }
            right = before < 5;
        }
        sums.right += right && !wrong ? weight : 0.0f;
    }
    return over_block<ClassSums>(sums);
}

// Points of each class that are found to be of it, all that are found to be of it, all that are; of those that weigh
// something.
static __device__ inline void count_classes(const float *output, Targets target, int sample, float *to, Part part,
                                            int channels) {
    __shared__ u32 bins[3 * WINDOW];
    ROLLED for (int first = 0; first < channels; first += WINDOW) {
        __syncthreads();
        ROLLED for (int k = threadIdx.x; k < 3 * WINDOW; k += BLOCK) bins[k] = 0;
        __syncthreads();
        ROLLED for (Long i = part.begin + threadIdx.x; i < part.end; i += BLOCK) {
            const int label = class_of(target.value(sample, i), channels);
            if (label < 0 || target.weight(sample, i) == 0.0f) continue;
            const Scores scores(output + i, channels, target.points, nullptr);
            const int found = scores.found - first, own = label - first;
            if (found == own && own >= 0 && own < WINDOW) atomicAdd(&bins[own], 1u);
            if (found >= 0 && found < WINDOW) atomicAdd(&bins[WINDOW + found], 1u);
            if (own >= 0 && own < WINDOW) atomicAdd(&bins[2 * WINDOW + own], 1u);
        }
        __syncthreads();
        const int here = channels - first < WINDOW ? channels - first : WINDOW;
        ROLLED for (int k = threadIdx.x; k < 3 * here; k += BLOCK)
            to[k / here * channels + first + k % here] = (float)bins[k / here * WINDOW + k % here];
    }
}

extern "C" __global__ void field_cross_entropy(const float *output, const float *target, const float *weights,
                                               float *partials, int n, int channels, Long points, Long apart,
                                               int parts, float smoothing, int metric) {
    require_block(BLOCK, 1);
    const int width = BEFORE + (metric == OF_IOU ? 3 * channels : 1);
    const Part part(points, blockIdx.x, parts);
    ROLLED for (int sample = blockIdx.y; sample < n; sample += gridDim.y) {
        const float *own = output + sample * channels * points;
        const Targets aim = {target, points, apart};
        float *to = partials + ((Long)sample * parts + blockIdx.x) * width;
        const ClassSums sums = class_sums(own, aim, sample, weights, part, channels, smoothing, metric);
        if (threadIdx.x == 0) {
            to[0] = sums.loss;
            to[1] = sums.count;
            if (metric != OF_IOU) to[BEFORE] = sums.right;
        }
        if (metric == OF_IOU) count_classes(own, aim, sample, to + BEFORE, part, channels);
    }
}
ENTRY(field_cross_entropy)

extern "C" __global__ void field_cross_entropy_backward(const float *output, const float *target,
                                                        const float *weights, float *doutput, int n, int channels,
                                                        Long points, Long apart, float divisor, float smoothing,
                                                        const Scalars *scalars) {
    const float scale = scalars->gradient_scale / divisor, share = smoothing / channels;
    const Targets targets = {target, points, apart};
    each(n * points, false, [&](Long i, auto) {
        const Long sample = i / points, at = sample * channels * points + i % points;
        const int label = class_of(targets.value(sample, i % points), channels);
        const Scores scores(output + at, channels, points, weights);
        const bool is_known = weights != nullptr && label >= 0 && label < channels;
        const float own = (1.0f - smoothing) * (is_known ? weights[label] : 1.0f);
        const float all = own + share * scores.weights, weight = targets.weight(sample, i % points) * scale;
        ROLLED for (int k = 0; k < channels; ++k) {
            const float probability = expf(output[at + k * points] - scores.largest) / scores.exponentials;
            const float aim = (k == label ? own : 0.0f) + share * (weights == nullptr ? 1.0f : weights[k]);
            doutput[at + k * points] = label < 0 ? 0.0f : (probability * all - aim) * weight;
        }
    });
}
ENTRY(field_cross_entropy_backward)

// ---- numbers ----

static __device__ inline float sigmoid_of(float y) {
    const float e = expf(-fabsf(y));
    return (y < 0.0f ? e : 1.0f) / (1.0f + e);
}

static __device__ inline float number_loss(int loss, float y, float t) {
    const float error = y - t, size = fabsf(error);
    if (loss == BCE) return (y > 0.0f ? y : 0.0f) - y * t + log1pf(expf(-fabsf(y)));
    if (loss == MAE) return size;
    if (loss == OUTPUT) return y;
    if (loss == HUBER && size > 1.0f) return size - 0.5f;
    return loss == HUBER ? 0.5f * error * error : error * error;
}

static __device__ inline float number_slope(int loss, float y, float t) {
    const float error = y - t;
    if (loss == BCE) return sigmoid_of(y) - t;
    if (loss == MSE) return 2.0f * error;
    if (loss == OUTPUT) return 1.0f;
    if (loss == MAE || error > 1.0f || error < -1.0f) return error > 0.0f ? 1.0f : error < 0.0f ? -1.0f : error;
    return error;
}

struct NumberSums {
    float loss, count, error, target, square;

    static __device__ NumberSums join(NumberSums a, NumberSums b) {
        return {a.loss + b.loss, a.count + b.count, a.error + b.error, a.target + b.target, a.square + b.square};
    }
};

extern "C" __global__ void field_numbers(const float *output, const float *target, float *partials, int n,
                                         Long points, Long apart, int parts, int loss, int metric) {
    require_block(BLOCK, 1);
    const int width = BEFORE + (metric == OF_R2 ? 3 : 1);
    const Part part(points, blockIdx.x, parts);
    const Targets targets = {target, points, apart};
    ROLLED for (int sample = blockIdx.y; sample < n; sample += gridDim.y) {
        NumberSums sums = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
        ROLLED for (Long i = part.begin + threadIdx.x; i < part.end; i += BLOCK) {
            const float y = output[sample * points + i], t = targets.value(sample, i);
            if (is_nan(t)) continue;
            const float error = (loss == BCE ? sigmoid_of(y) : y) - t, weight = targets.weight(sample, i);
            sums.loss += weight * number_loss(loss, y, t);
            sums.count += weight;
            sums.error += weight * (metric == OF_ACCURACY ? ((y > 0.0f) == (t > 0.5f) ? 1.0f : 0.0f)
                                    : metric == OF_MAE    ? fabsf(error)
                                                          : error * error);
            sums.target += weight * t;
            sums.square += weight * (t * t);
        }
        sums = over_block<NumberSums>(sums);
        if (threadIdx.x != 0) continue;
        float *to = partials + ((Long)sample * parts + blockIdx.x) * width;
        to[0] = sums.loss;
        to[1] = sums.count;
        to[BEFORE] = sums.error;
        if (metric == OF_R2) {
            to[BEFORE + 1] = sums.target;
            to[BEFORE + 2] = sums.square;
        }
    }
}
ENTRY(field_numbers)

extern "C" __global__ void field_numbers_backward(const float *output, const float *target, float *doutput, Long n,
                                                  Long points, Long apart, float divisor, int loss,
                                                  const Scalars *scalars) {
    const float scale = scalars->gradient_scale / divisor;
    const Targets targets = {target, points, apart};
    if (apart != points) {
        each(n, false, [&](Long i, auto) {
            const Long sample = i / points, own = i % points;
            const float t = targets.value(sample, own), weight = targets.weight(sample, own);
            doutput[i] = is_nan(t) ? 0.0f : number_slope(loss, output[i], t) * weight * scale;
        });
        return;
    }
    each(n, aligned(output) && aligned(target) && aligned(doutput), [&](Long i, auto count) {
        constexpr int N = decltype(count)::value;
        float y[N], t[N];
        load<N>(output + i, y);
        load<N>(target + i, t);
        for (int k = 0; k < N; ++k) y[k] = is_nan(t[k]) ? 0.0f : number_slope(loss, y[k], t[k]) * scale;
        store<N>(doutput + i, y);
    });
}
ENTRY(field_numbers_backward)

// ---- parts together ----

// A block has a sample at a time. Without losses what is written are the totals.
extern "C" __global__ void field_join(const float *partials, f64 *totals, float *losses, float *sums, int n, int parts,
                                      int width, Long of_sample, Long of_part, Long points, int metric) {
    require_block(BLOCK, 1);
    const int own = width - BEFORE, channels = own / 3;
    ROLLED for (int sample = blockIdx.x; sample < n; sample += gridDim.x) {
        const float *from = partials + sample * of_sample;
        f64 *total = totals + (Long)sample * width;
        ROLLED for (int k = threadIdx.x; k < width; k += BLOCK) {
            f64 sum = 0.0;
            ROLLED for (int part = 0; part < parts; ++part) sum += from[part * of_part + k];
            total[k] = k == 0 ? sum / points : sum;
            if (losses == nullptr) sums[(Long)sample * width + k] = (float)total[k];
        }
        if (losses == nullptr) continue;
        __syncthreads();
        const f64 count = total[1];
        if (metric != OF_IOU) {
            ROLLED for (int k = threadIdx.x; k < own; k += BLOCK)
                sums[(Long)sample * own + k] = count > 0.0 ? (float)(total[BEFORE + k] / count) : 0.0f;
        } else {
            float *to = sums + (Long)sample * (1 + own);
            ROLLED for (int k = threadIdx.x; k < own; k += BLOCK) {
                const f64 hits = total[BEFORE + k % channels];
                to[1 + k] = (float)(k < channels ? hits : total[BEFORE + k] - hits);
            }
        }
        if (threadIdx.x == 0) {
            losses[sample] = (float)total[0];
            f64 mean = 0.0;
            ROLLED for (int k = 0; metric == OF_IOU && k < channels; ++k) {
                const f64 *of = total + BEFORE + k, hits = of[0];
                const f64 all = of[channels] + of[2 * channels] - hits;
                mean += all > 0.0 ? hits / all : 1.0;
            }
            if (metric == OF_IOU) sums[(Long)sample * (1 + own)] = count > 0.0 ? (float)(mean / channels) : 0.0f;
        }
        __syncthreads();
    }
}
ENTRY(field_join)
