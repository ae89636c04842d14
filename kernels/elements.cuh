// Functions of one number, and of two, for each element.
#pragma once
#include "common.cuh"

// y = f(x), element by element; y may be x.
template <class F, class T, class Change> __device__ inline void map(const F *x, T *y, Long n, Change change) {
    each(n, aligned(x) && aligned(y), [&](Long i, auto count) {
        float v[count.value];
        load(x + i, v);
        for (int k = 0; k < count.value; ++k) v[k] = change(v[k]);
        store(y + i, v);
    });
}

// y = f(a, b); y may be a or b.
template <class A, class B, class T, class Join>
__device__ inline void zip(const A *a, const B *b, T *y, Long n, Join join) {
    each(n, aligned(a) && aligned(b) && aligned(y), [&](Long i, auto count) {
        float left[count.value], right[count.value];
        load(a + i, left);
        load(b + i, right);
        for (int k = 0; k < count.value; ++k) left[k] = join(left[k], right[k]);
        store(y + i, left);
    });
}
