/* f16 (IEEE 754 binary16) and bf16 to f32 and back: exact one way, rounded to nearest even the other. NaNs
 * stay NaNs: they are made quiet and keep the upper bits of their payload, as the F16C instructions do, so
 * that every build gives the same bits. Without branches, so that compilers vectorise loops over them. One text
 * for the processor and, by nvcc, for the device. */
#ifndef PSD_HALF_H
#define PSD_HALF_H

#include <stdint.h>
#include <string.h>

/* A function of single elements that both compile. */
#ifdef __CUDACC__
#define PSD_ELEMENT static __host__ __device__ __forceinline__
#else
#define PSD_ELEMENT static inline
#endif

PSD_ELEMENT uint32_t half_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

PSD_ELEMENT float half_float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

PSD_ELEMENT float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    /* A subnormal is its mantissa times 2^-24. */
    uint32_t subnormal = half_bits_of((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t normal = (magnitude << 13) + ((127u - 15u) << 23);
    uint32_t special = (magnitude << 13) | 0x7f800000u | (magnitude > 0x7c00u ? 0x00400000u : 0u);
    uint32_t bits = magnitude < 0x0400u ? subnormal : magnitude < 0x7c00u ? normal : special;
    return half_float_of(sign | bits);
}

PSD_ELEMENT uint16_t f32_to_f16(float value)
{
    uint32_t bits = half_bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    /* Below 2^-14 the float adder rounds for us: 0.5 has its last bit at 2^-24, a subnormal half's. */
    float small = half_float_of(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
    uint32_t subnormal = half_bits_of(small) - 0x3f000000u;
    uint32_t normal = (magnitude - ((127u - 15u) << 23) + 0x0fffu + (magnitude >> 13 & 1u)) >> 13;
    uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x03ffu);
    /* From 65520 up, the middle between the largest half and the next power of two, it is infinity. */
    uint32_t half = magnitude < 0x38800000u   ? subnormal
                    : magnitude < 0x477ff000u ? normal
                    : magnitude > 0x7f800000u ? nan
                                              : 0x7c00u;
    return (uint16_t)(sign | half);
}

PSD_ELEMENT float bf16_to_f32(uint16_t brain)
{
    uint32_t quiet = (brain & 0x7fffu) > 0x7f80u ? 0x00400000u : 0u;
    return half_float_of((uint32_t)brain << 16 | quiet);
}

PSD_ELEMENT uint16_t f32_to_bf16(float value)
{
    uint32_t bits = half_bits_of(value);
    uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    uint32_t nan = bits >> 16 | 0x0040u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

#endif
