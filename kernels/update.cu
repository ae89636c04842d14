// The optimizers' updates: the arithmetic of `device::Rule`, to the bit, for all parameters in one launch.
#include "update.cuh"

extern "C" __global__ void update_sgd(TABLE, float *w, const float *g, float *m, void *half, int half_type,
                                      float momentum, int nesterov, float weight_decay, const Scalars *scalars) {
    if (scalars->skip) return;
    const Half copy = {half, half_type};
    const float rate = scalars->learning_rate;
    const bool wide = aligned(w) && aligned(g) && aligned(m) && copy.wide();
    each_of_pieces(pieces, piece_count, spans, wide, [&](Long i, auto count, u32, bool decays) {
        constexpr int N = count.value;
        const float decay = decays ? weight_decay : 0.0f;
        float own[N], gradient[N], velocity[N];
        load(w + i, own);
        load(g + i, gradient);
        if (m != nullptr) load(m + i, velocity);
        for (int k = 0; k < N; ++k) {
            float step = gradient[k] + decay * own[k];
            if (m != nullptr) {
                velocity[k] = momentum * velocity[k] + step;
                step = nesterov ? step + momentum * velocity[k] : velocity[k];
            }
            own[k] -= rate * step;
        }
        if (m != nullptr) store(m + i, velocity);
        store(w + i, own);
        copy.put(i, own);
    });
}
ENTRY(update_sgd)

extern "C" __global__ void update_adam(TABLE, float *w, const float *g, float *m, float *v, void *half, int half_type,
                                       float beta1, float beta2, float epsilon, float weight_decay, int decoupled,
                                       const Scalars *scalars) {
    if (scalars->skip) return;
    const Half copy = {half, half_type};
    const float rate = (float)((f64)scalars->learning_rate / scalars->correction1);
    const float root2 = (float)sqrt(scalars->correction2);
    const bool wide = aligned(w) && aligned(g) && aligned(m) && aligned(v) && copy.wide();
    each_of_pieces(pieces, piece_count, spans, wide, [&](Long i, auto count, u32, bool decays) {
        constexpr int N = count.value;
        const float decay = decays ? weight_decay : 0.0f;
        const float added = decoupled ? 0.0f : decay, taken = decoupled ? scalars->learning_rate * decay : 0.0f;
        float own[N], gradient[N], first[N], second[N];
        load(w + i, own);
        load(g + i, gradient);
        load(m + i, first);
        load(v + i, second);
        for (int k = 0; k < N; ++k) {
            const float step = gradient[k] + added * own[k];
            first[k] = beta1 * first[k] + (1.0f - beta1) * step;
            second[k] = beta2 * second[k] + (1.0f - beta2) * step * step;
            own[k] -= rate * first[k] / (sqrtf(second[k]) / root2 + epsilon) + taken * own[k];
        }
        store(m + i, first);
        store(v + i, second);
        store(w + i, own);
        copy.put(i, own);
    });
}
ENTRY(update_adam)

extern "C" __global__ void update_rms_prop(TABLE, float *w, const float *g, float *s, float *m, void *half,
                                           int half_type, float rms_decay, float momentum, float epsilon,
                                           float weight_decay, int tensorflow, const Scalars *scalars) {
    if (scalars->skip) return;
    const Half copy = {half, half_type};
    const float rate = scalars->learning_rate;
    const float inner = tensorflow ? rate : 1.0f, outer = tensorflow ? 1.0f : rate;
    // Memory comes as zeros; here alone a state starts elsewhere.
    const bool from_one = tensorflow && scalars->update == 1;
    const bool wide = aligned(w) && aligned(g) && aligned(s) && aligned(m) && copy.wide();
    each_of_pieces(pieces, piece_count, spans, wide, [&](Long i, auto count, u32, bool decays) {
        constexpr int N = count.value;
        const float decay = decays ? weight_decay : 0.0f;
        float own[N], gradient[N], square[N], velocity[N];
        load(w + i, own);
        load(g + i, gradient);
        load(s + i, square);
        if (m != nullptr) load(m + i, velocity);
        for (int k = 0; k < N; ++k) {
            const float step = gradient[k] + decay * own[k];
            square[k] = rms_decay * (from_one ? 1.0f : square[k]) + (1.0f - rms_decay) * step * step;
            const float scaled = tensorflow ? step / sqrtf(square[k] + epsilon) : step / (sqrtf(square[k]) + epsilon);
            if (m != nullptr) {
                velocity[k] = momentum * velocity[k] + inner * scaled;
                own[k] -= outer * velocity[k];
            } else {
                own[k] -= rate * scaled;
            }
        }
        store(s + i, square);
        if (m != nullptr) store(m + i, velocity);
        store(w + i, own);
        copy.put(i, own);
    });
}
ENTRY(update_rms_prop)

extern "C" __global__ void update_lars(TABLE, float *w, const float *g, float *m, void *half, int half_type,
                                       const float *trust, float momentum, float weight_decay,
                                       const Scalars *scalars) {
    if (scalars->skip) return;
    const Half copy = {half, half_type};
    const bool wide = aligned(w) && aligned(g) && aligned(m) && copy.wide();
    each_of_pieces(pieces, piece_count, spans, wide, [&](Long i, auto count, u32 span, bool decays) {
        constexpr int N = count.value;
        const float decay = decays ? weight_decay : 0.0f, local = scalars->learning_rate * trust[span];
        float own[N], gradient[N], velocity[N];
        load(w + i, own);
        load(g + i, gradient);
        load(m + i, velocity);
        for (int k = 0; k < N; ++k) {
            velocity[k] = momentum * velocity[k] + local * (gradient[k] + decay * own[k]);
            own[k] -= velocity[k];
        }
        store(m + i, velocity);
        store(w + i, own);
        copy.put(i, own);
    });
}
ENTRY(update_lars)

extern "C" __global__ void update_lamb(TABLE, float *w, const float *m, const float *v, void *half, int half_type,
                                       const float *trust, float epsilon, float weight_decay, const Scalars *scalars) {
    if (scalars->skip) return;
    const Half copy = {half, half_type};
    const LambDirection direction(scalars, epsilon, weight_decay);
    const bool wide = aligned(w) && aligned(m) && aligned(v) && copy.wide();
    each_of_pieces(pieces, piece_count, spans, wide, [&](Long i, auto count, u32 span, bool decays) {
        constexpr int N = count.value;
        const float local = scalars->learning_rate * trust[span];
        float own[N], first[N], second[N];
        load(w + i, own);
        load(m + i, first);
        load(v + i, second);
        for (int k = 0; k < N; ++k) own[k] -= local * direction.of(own[k], first[k], second[k], decays);
        store(w + i, own);
        copy.put(i, own);
    });
}
ENTRY(update_lamb)

// The moving average of parameters, as `device::update::average` has it: the first value is taken over.
extern "C" __global__ void average(const float *from, float *into, Long n, float decay, const Scalars *scalars) {
    if (scalars->skip) return;
    const float share = scalars->update <= 1 ? 1.0f : 1.0f - decay;
    each(n, aligned(from) && aligned(into), [&](Long i, auto count) {
        float value[count.value], mean[count.value];
        load(from + i, value);
        load(into + i, mean);
        for (int k = 0; k < count.value; ++k) mean[k] += share * (value[k] - mean[k]);
        store(into + i, mean);
    });
}
ENTRY(average)

// Takes the loss scale off f16's gradients, and says whether any had overflowed.
extern "C" __global__ void unscale(float *g, Long n, u32 *broken, const Scalars *scalars) {
    const float factor = scalars->unscale;
    bool found = false;
    each(n, aligned(g), [&](Long i, auto count) {
        float v[count.value];
        load(g + i, v);
        for (int k = 0; k < count.value; ++k) {
            found |= !is_finite(v[k]);
            v[k] *= factor;
        }
        store(g + i, v);
    });
    // Whoever writes, it is the same.
    if (found) *broken = 1;
}
ENTRY(unscale)
