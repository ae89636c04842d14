// Matrices and images as the libraries' doubles read and write them: any type of number, as f32.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

namespace numbers {

enum class Type { F32, F16, Bf16, None };

inline size_t bytes(Type type) { return type == Type::F32 ? 4 : 2; }

inline float bits(uint32_t of) {
    float value;
    memcpy(&value, &of, 4);
    return value;
}

inline float get(const void *from, Type type, size_t i) {
    if (type == Type::F32) return ((const float *)from)[i];
    const uint16_t half = ((const uint16_t *)from)[i];
    if (type == Type::Bf16) return bits(uint32_t(half) << 16);
    const int exponent = half >> 10 & 31, mantissa = half & 1023;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return sign * bits(0x7f800000u | uint32_t(mantissa) << 13);
    return sign * (exponent ? __builtin_ldexpf(1024 + mantissa, exponent - 25) : __builtin_ldexpf(mantissa, -24));
}

inline void put(void *to, Type type, size_t i, float value) {
    if (type == Type::F32) {
        ((float *)to)[i] = value;
    } else if (type == Type::Bf16) {
        uint32_t of;
        memcpy(&of, &value, 4);
        of = value != value ? of | 0x400000u : of + 0x7fffu + (of >> 16 & 1);
        ((uint16_t *)to)[i] = uint16_t(of >> 16);
    } else {
        // The compiler's own conversion.
        const _Float16 half = value;
        memcpy((uint16_t *)to + i, &half, 2);
    }
}

} // namespace numbers
