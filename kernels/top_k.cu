// Top-k (`top_k.rs`): of each piece the numbers of largest magnitude, as f32, then their places in it, as u16; both in
// the order of places, of equal magnitudes the first.
#include "compress.cuh"

// Numbers that are sent of so many: the share, rounded up.
static __device__ inline u32 sent_of(u32 elements, float share) {
    const f64 wanted = ceil((f64)share * (f64)elements);
    return wanted < (f64)elements ? (u32)wanted : elements;
}

// What is sent: all above `least`, and the first `equal` of that very magnitude.
struct Bar {
    u32 least, equal;
};

// Finds the k-th largest magnitude eight bits at a time, from the top: how many share the bits found so far and have
// each of the 256 values of the next ones.
static __device__ inline Bar bar_of(const float *values, u32 count, u32 k) {
    __shared__ u32 bins[256];
    __shared__ u32 found[2];
    u32 known = 0, wanted = k;
    ROLLED for (int shift = 24; shift >= 0; shift -= 8) {
        bins[threadIdx.x] = 0;
        __syncthreads();
        ROLLED for (u32 i = threadIdx.x; i < count; i += BLOCK) {
            const u32 size = magnitude(values[i]);
            // The bits above the bin: at the first look none are known.
            const bool alike = shift == 24 || size >> (shift + 8) == known >> (shift + 8);
            if (alike) atomicAdd(&bins[size >> shift & 255u], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            u32 bin = 255, above = 0;
            while (above + bins[bin] < wanted) above += bins[bin--];
            found[0] = known | bin << shift;
            found[1] = wanted - above;
        }
        __syncthreads();
        known = found[0];
        wanted = found[1];
    }
    return {known, wanted};
}

// Of each thread's number the sum over the threads before it.
static __device__ inline u32 before_this(u32 value) {
    __shared__ u32 all[BLOCK];
    __syncthreads();
    all[threadIdx.x] = value;
    u32 sum = value;
    ROLLED for (int step = 1; step < BLOCK; step *= 2) {
        __syncthreads();
        if (threadIdx.x >= step) sum += all[threadIdx.x - step];
        __syncthreads();
        all[threadIdx.x] = sum;
    }
    return sum - value;
}

extern "C" __global__ void top_k_encode(float *values, u8 *messages, const Message *table, int count, float share) {
    each_message(table, count, [&](Message at) {
        const u32 k = sent_of(at.count, share);
        if (k == 0) return;
        float *own = values + at.first;
        const Bar bar = bar_of(own, at.count, k);
        // Each thread has a run of neighbours, so that entries come in the order of places.
        const u32 run = (at.count + BLOCK - 1) / BLOCK;
        const u32 first = threadIdx.x * run < at.count ? threadIdx.x * run : at.count;
        const u32 end = first + run < at.count ? first + run : at.count;
        u32 larger = 0, equal = 0;
        ROLLED for (u32 i = first; i < end; ++i) {
            larger += magnitude(own[i]) > bar.least;
            equal += magnitude(own[i]) == bar.least;
        }
        const u32 larger_before = before_this(larger), equal_before = before_this(equal);
        u32 equal_seen = equal_before;
        u32 entry = larger_before + (equal_before < bar.equal ? equal_before : bar.equal);
        float *numbers = (float *)(messages + 4 * (u64)at.word);
        u16 *places = (u16 *)(numbers + k);
        ROLLED for (u32 i = first; i < end; ++i) {
            const u32 size = magnitude(own[i]);
            const bool sent = size > bar.least || (size == bar.least && equal_seen++ < bar.equal);
            if (!sent) continue;
            numbers[entry] = own[i];
            places[entry++] = (u16)i;
            own[i] = 0.0f;
        }
    });
}
ENTRY(top_k_encode)

// Places of one message differ, so that no two threads add to one number.
extern "C" __global__ void top_k_add(const u8 *messages, float *sum, const Message *table, int count, float share) {
    each_message(table, count, [&](Message at) {
        const u32 k = sent_of(at.count, share);
        const float *numbers = (const float *)(messages + 4 * (u64)at.word);
        const u16 *places = (const u16 *)(numbers + k);
        ROLLED for (u32 entry = threadIdx.x; entry < k; entry += BLOCK) sum[at.first + places[entry]] += numbers[entry];
    });
}
ENTRY(top_k_add)
