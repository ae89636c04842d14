// Gradient compression: where messages lie. The schemes and their bytes are those of src/fusion/compress.
#pragma once
#include "common.cuh"

// What is said of a piece of at most 65536 elements.
struct Message {
    // Its first element.
    u64 first;
    u32 count;
    // The 4-byte word of the buffer at which the message begins.
    u32 word;
};

// Calls f(message) for each message of this block.
template <class F> static __device__ inline void each_message(const Message *table, int count, F f) {
    require_block(BLOCK, 1);
    ROLLED for (int i = blockIdx.x; i < count; i += gridDim.x) f(table[i]);
}

static __device__ inline u32 magnitude(float value) { return __float_as_uint(value) & 0x7fffffffu; }
