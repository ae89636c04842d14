// Dropout. Nothing is stored: the backward pass computes the same mask.
#include "philox.cuh"

template <class T>
__device__ inline void dropout(const T *x, T *y, Long samples, int channels, int plane, float p, u32 layer,
                               int whole, const Scalars *scalars) {
    const Key key = stream_key(scalars->seed, DROPOUT, layer);
    const float kept = 1.0f / (1.0f - p);
    const Long per_sample = (Long)channels * plane;
    const u64 step = scalars->step;
    const auto words = [&](Long sample, Long four) {
        return philox(key, {{(u32)four, (u32)(scalars->first_sample + sample), (u32)step, (u32)(step >> 32)}});
    };
    const auto change = [&](Long i, u32 word) {
        y[i] = Rounded<T>::of(uniform(word) < p ? 0.0f : number(x[i]) * kept);
    };
    if (whole) {
        each(samples * per_sample, false, [&](Long i, auto) { change(i, words(i / per_sample, 0).at[0]); });
        return;
    }
    if (plane == 1) {
        // Logical order is that of the memory: one draw is for four neighbours.
        const Long fours = (per_sample + 3) / 4;
        each(samples * fours, false, [&](Long at, auto) {
            const Long sample = at / fours, four = at % fours;
            const Words drawn = words(sample, four);
            for (int k = 0; k < 4 && 4 * four + k < per_sample; ++k)
                change(sample * per_sample + 4 * four + k, drawn.at[k]);
        });
        return;
    }
    each(samples * per_sample, false, [&](Long i, auto) {
        const Long sample = i / per_sample, within = i % per_sample;
        const Long element = within % channels * plane + within / channels;
        const Words drawn = words(sample, element / 4);
        // No array with a changing index: it would not be registers.
        const u32 upper = element % 2 ? drawn.at[3] : drawn.at[2], lower = element % 2 ? drawn.at[1] : drawn.at[0];
        change(i, element % 4 < 2 ? lower : upper);
    });
}

#define DROP(T, t)                                                                                                     \
    extern "C" __global__ void dropout_##t(const T *x, T *y, Long samples, int channels, int plane, float p,           \
                                           u32 layer, int whole, const Scalars *scalars) {                             \
        dropout(x, y, samples, channels, plane, p, layer, whole, scalars);                                             \
    }                                                                                                                  \
    ENTRY(dropout_##t)

FOR_NUMBERS(DROP)
