// The table by which one launch updates all parameters, and what a rule does with a piece of them.
#pragma once
#include "common.cuh"

// `device::Span`, in elements of the regions.
struct Span {
    u64 start, length;
    u32 decay, unused;
};

// A part of a span: what one block does at a time.
struct Piece {
    u64 start;
    u32 length, span;
};

// The copy of the parameters in which the network computes.
struct Half {
    void *at;
    // 0: there is none; 1: bf16; 2: f16.
    int type;

    template <int N> __device__ inline void put(Long i, const float (&w)[N]) const {
        if (type == 1) store((Bf16 *)at + i, w);
        if (type == 2) store((F16 *)at + i, w);
    }

    __device__ inline bool wide() const { return (u64)at % 8 == 0; }
};

// Calls f(first element, Count, piece index, whether decay applies) for all elements of all pieces of this block.
// `wide`: whether every region begins at a multiple of 16 bytes.
template <class F>
static __device__ inline void each_of_pieces(const Piece *pieces, int piece_count, const Span *spans, bool wide, F f) {
    ROLLED for (int p = blockIdx.x; p < piece_count; p += gridDim.x) {
        const Piece piece = pieces[p];
        const bool decay = spans[piece.span].decay != 0;
        each_from(threadIdx.x, blockDim.x, piece.length, wide && piece.start % 4 == 0,
                  [&](Long i, auto count) { f((Long)piece.start + i, count, piece.span, decay); });
    }
}

// `Rule::lamb_direction`.
struct LambDirection {
    float factor1, root2, epsilon, weight_decay;

    __device__ inline LambDirection(const Scalars *scalars, float epsilon, float weight_decay)
        : factor1((float)(1.0 / scalars->correction1)), root2((float)sqrt(scalars->correction2)), epsilon(epsilon),
          weight_decay(weight_decay) {}

    __device__ inline float of(float w, float m, float v, bool decay) const {
        return factor1 * m / (sqrtf(v) / root2 + epsilon) + (decay ? weight_decay : 0.0f) * w;
    }
};

#define TABLE const Piece *pieces, int piece_count, const Span *spans
