// Sums over memories: what the GPU of a rank does with its gradients and those of the other GPUs of its node.
#include "common.cuh"

constexpr int PARTS = 8;

// Adds up the parts that `of` has a bit for, in their order, and writes the sum to those that `to` has one for.
extern "C" __global__ void add_parts(float *p0, float *p1, float *p2, float *p3, float *p4, float *p5, float *p6,
                                     float *p7, int of, int to, Long n) {
    float *const parts[PARTS] = {p0, p1, p2, p3, p4, p5, p6, p7};
    bool wide = true;
    for (int part = 0; part < PARTS; ++part) wide = wide && aligned(parts[part]);
    each(n, wide, [&](Long i, auto count) {
        float sum[count.value] = {}, v[count.value];
        bool first = true;
        // All are read before anything is written: they may be far away.
        for (int part = 0; part < PARTS; ++part) {
            if (!(of >> part & 1)) continue;
            load(parts[part] + i, v);
            for (int k = 0; k < count.value; ++k) sum[k] = first ? v[k] : sum[k] + v[k];
            first = false;
        }
        for (int part = 0; part < PARTS; ++part)
            if (to >> part & 1) store(parts[part] + i, sum);
    });
}
ENTRY(add_parts)
