// Two bits a number (`two_bit.rs`), four numbers a byte: 0 nothing, 1 plus a threshold, 2 minus it, 3 not a finite
// number.
#include "compress.cuh"

extern "C" __global__ void two_bit_encode(float *values, u8 *messages, const Message *table, int count,
                                          float threshold) {
    each_message(table, count, [&](Message at) {
        ROLLED for (u32 byte = threadIdx.x; byte < (at.count + 3) / 4; byte += BLOCK) {
            u32 codes = 0;
            ROLLED for (u32 k = 0; k < 4 && 4 * byte + k < at.count; ++k) {
                float &value = values[at.first + 4 * byte + k];
                const bool reached = fabsf(value) >= threshold;
                const u32 minus = __float_as_uint(value) >> 31;
                const u32 code = is_finite(value) ? (u32)reached << minus : 3u;
                codes |= code << (2 * k);
                if (reached) value -= minus ? -threshold : threshold;
            }
            messages[4 * (u64)at.word + byte] = (u8)codes;
        }
    });
}
ENTRY(two_bit_encode)

extern "C" __global__ void two_bit_add(const u8 *messages, float *sum, const Message *table, int count,
                                       float threshold) {
    each_message(table, count, [&](Message at) {
        ROLLED for (u32 i = threadIdx.x; i < at.count; i += BLOCK) {
            const u32 code = messages[4 * (u64)at.word + i / 4] >> (2 * (i % 4)) & 3u;
            const float finite = code == 0 ? 0.0f : code == 1 ? threshold : -threshold;
            sum[at.first + i] += code == 3 ? __uint_as_float(0x7fc00000u) : finite;
        }
    });
}
ENTRY(two_bit_add)
