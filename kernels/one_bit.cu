// One bit a number (`one_bit.rs`): the mean of the numbers ≥ 0, that of the others, then a bit each, set where the
// number is ≥ 0.
#include "compress.cuh"

extern "C" __global__ void one_bit_encode(float *values, u8 *messages, const Message *table, int count) {
    each_message(table, count, [&](Message at) {
        float *own = values + at.first;
        f64 sums[2] = {};
        int positive = 0;
        ROLLED for (u32 i = threadIdx.x; i < at.count; i += BLOCK) {
            const bool sign = own[i] >= 0.0f;
            sums[0] += sign ? 0.0 : (f64)own[i];
            sums[1] += sign ? (f64)own[i] : 0.0;
            positive += sign;
        }
        const f64 below = over_block<Add>(sums[0]), above = over_block<Add>(sums[1]);
        positive = over_block<Add>(positive);
        const int negative = (int)at.count - positive;
        const float mean_below = (float)(below / (negative > 1 ? negative : 1));
        const float mean_above = (float)(above / (positive > 1 ? positive : 1));
        u8 *message = messages + 4 * (u64)at.word;
        if (threadIdx.x == 0) {
            ((float *)message)[0] = mean_above;
            ((float *)message)[1] = mean_below;
        }
        ROLLED for (u32 byte = threadIdx.x; byte < (at.count + 7) / 8; byte += BLOCK) {
            u32 bits = 0;
            ROLLED for (u32 k = 0; k < 8 && 8 * byte + k < at.count; ++k) {
                float &value = own[8 * byte + k];
                const bool sign = value >= 0.0f;
                bits |= (u32)sign << k;
                value -= sign ? mean_above : mean_below;
            }
            message[8 + byte] = (u8)bits;
        }
    });
}
ENTRY(one_bit_encode)

extern "C" __global__ void one_bit_add(const u8 *messages, float *sum, const Message *table, int count) {
    each_message(table, count, [&](Message at) {
        const u8 *message = messages + 4 * (u64)at.word;
        const float above = ((const float *)message)[0], below = ((const float *)message)[1];
        ROLLED for (u32 i = threadIdx.x; i < at.count; i += BLOCK)
            sum[at.first + i] += message[8 + i / 8] >> (i % 8) & 1 ? above : below;
    });
}
ENTRY(one_bit_add)
