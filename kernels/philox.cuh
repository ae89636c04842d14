// Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011), as in src/random.rs.
#pragma once
#include "common.cuh"

struct Key {
    u32 at[2];
};

struct Words {
    u32 at[4];
};

static __device__ inline Words philox(Key key, Words counter) {
    u32 k0 = key.at[0], k1 = key.at[1];
    Words c = counter;
    for (int round = 0; round < 10; ++round) {
        const u64 p0 = (u64)0xD2511F53u * c.at[0], p1 = (u64)0xCD9E8D57u * c.at[2];
        c = {{(u32)(p1 >> 32) ^ c.at[1] ^ k0, (u32)p1, (u32)(p0 >> 32) ^ c.at[3] ^ k1, (u32)p0}};
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

// `random::Purpose`.
constexpr u32 DROPOUT = 3;

// `random::key`.
static __device__ inline Key stream_key(u64 seed, u32 purpose, u32 which) {
    const Words mixed = philox({{(u32)seed, (u32)(seed >> 32)}}, {{purpose, which, 0x646c7472u, 0u}});
    return {{mixed.at[0], mixed.at[1]}};
}

// In [0, 1), with 24 random bits.
static __device__ inline float uniform(u32 word) { return (float)(word >> 8) * (1.0f / 16777216.0f); }
