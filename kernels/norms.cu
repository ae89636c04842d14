// Norms: of parameters and their steps for LARS and LAMB, of all gradients for clipping. In f64, in two passes: each
// block adds up its own in one order, then one thread, or one block, adds up those.
#include "update.cuh"

// Two sums over the block's pieces: `add(first element, Count, whether decay applies, sums)` takes in elements.
template <class F>
static __device__ inline void measure(TABLE, bool wide, f64 *sums, F add) {
    require_block(BLOCK, 1);
    ROLLED for (int p = blockIdx.x; p < piece_count; p += gridDim.x) {
        const Piece piece = pieces[p];
        const bool decay = spans[piece.span].decay != 0;
        f64 own[2] = {};
        each_from(threadIdx.x, BLOCK, piece.length, wide && piece.start % 4 == 0,
                  [&](Long i, auto count) { add((Long)piece.start + i, count, decay, own); });
        const f64 first = over_block<Add>(own[0]), second = over_block<Add>(own[1]);
        if (threadIdx.x != 0) continue;
        sums[2 * (Long)p] = first;
        sums[2 * (Long)p + 1] = second;
    }
}

template <int N> static __device__ inline void add_squares(const float (&x)[N], f64 &sum) {
    for (int k = 0; k < N; ++k) sum += (f64)x[k] * (f64)x[k];
}

// ‖w‖² and ‖g‖² of each piece.
extern "C" __global__ void measure_lars(TABLE, const float *w, const float *g, f64 *sums, const Scalars *scalars) {
    if (scalars->skip) return;
    measure(pieces, piece_count, spans, aligned(w) && aligned(g), sums, [&](Long i, auto count, bool, f64(&own)[2]) {
        float parameter[count.value], gradient[count.value];
        load(w + i, parameter);
        load(g + i, gradient);
        add_squares(parameter, own[0]);
        add_squares(gradient, own[1]);
    });
}
ENTRY(measure_lars)

// Moves the moments; ‖w‖² and the squared norm of the direction of each piece.
extern "C" __global__ void measure_lamb(TABLE, const float *w, const float *g, float *m, float *v, f64 *sums,
                                        float beta1, float beta2, float epsilon, float weight_decay,
                                        const Scalars *scalars) {
    if (scalars->skip) return;
    const LambDirection direction(scalars, epsilon, weight_decay);
    const bool wide = aligned(w) && aligned(g) && aligned(m) && aligned(v);
    measure(pieces, piece_count, spans, wide, sums, [&](Long i, auto count, bool decays, f64(&own)[2]) {
        constexpr int N = count.value;
        float parameter[N], gradient[N], first[N], second[N], step[N];
        load(w + i, parameter);
        load(g + i, gradient);
        load(m + i, first);
        load(v + i, second);
        for (int k = 0; k < N; ++k) {
            first[k] = beta1 * first[k] + (1.0f - beta1) * gradient[k];
            second[k] = beta2 * second[k] + (1.0f - beta2) * gradient[k] * gradient[k];
            step[k] = direction.of(parameter[k], first[k], second[k], decays);
        }
        store(m + i, first);
        store(v + i, second);
        add_squares(parameter, own[0]);
        add_squares(step, own[1]);
    });
}
ENTRY(measure_lamb)

// The first piece of a span, or of a later one: pieces lie in the order of their spans.
static __device__ inline int first_piece(const Piece *pieces, int piece_count, u32 span) {
    int low = 0, high = piece_count;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (pieces[middle].span < span) low = middle + 1;
        else high = middle;
    }
    return low;
}

// `Rule::trust` of each span.
extern "C" __global__ void trust(TABLE, int span_count, const f64 *sums, float *trust, float lars_trust,
                                 float weight_decay, int lars) {
    each(span_count, false, [&](Long span, auto) {
        f64 total[2] = {};
        int p = first_piece(pieces, piece_count, (u32)span);
        ROLLED for (; p < piece_count && pieces[p].span == span; ++p) {
            total[0] += sums[2 * (Long)p];
            total[1] += sums[2 * (Long)p + 1];
        }
        const f64 parameter = sqrt(total[0]), other = sqrt(total[1]);
        float ratio = 1.0f;
        if (spans[span].decay && parameter > 0.0 && other > 0.0) {
            const f64 norm = lars ? other + (f64)weight_decay * parameter : other;
            ratio = (float)((lars ? (f64)lars_trust * parameter : parameter) / norm);
        }
        trust[span] = ratio;
    });
}
ENTRY(trust)

// Σx² of what each block reads.
extern "C" __global__ void squares(const float *x, Long n, f64 *partials) {
    require_block(BLOCK, 1);
    f64 sum = 0.0;
    each(n, aligned(x), [&](Long i, auto count) {
        float v[count.value];
        load(x + i, v);
        add_squares(v, sum);
    });
    sum = over_block<Add>(sum);
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}
ENTRY(squares)

// `device::update::clip_factor`; 1: they stay.
extern "C" __global__ void clip_factor(const f64 *partials, int count, float max_norm, float *factor) {
    require_block(BLOCK, 1);
    f64 sum = 0.0;
    ROLLED for (int i = threadIdx.x; i < count; i += BLOCK) sum += partials[i];
    sum = over_block<Add>(sum);
    const f64 needed = (f64)max_norm / (sqrt(sum) + 1e-6);
    if (threadIdx.x == 0) *factor = needed < 1.0 ? (float)needed : 1.0f;
}
ENTRY(clip_factor)

extern "C" __global__ void clip(float *g, Long n, const float *factor) {
    const float by = *factor;
    if (by == 1.0f) return;
    each(n, aligned(g), [&](Long i, auto count) {
        float v[count.value];
        load(g + i, v);
        for (int k = 0; k < count.value; ++k) v[k] *= by;
        store(g + i, v);
    });
}
ENTRY(clip)
