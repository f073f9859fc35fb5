#pragma once

// GCC 12 takes the "undefined" operand of its own AVX-512 intrinsics for an uninitialised variable
// (GCC bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

// Only for *_simd.cc, which are compiled once per instruction set with LODESTONE_SIMD_NAMESPACE
// set. Every function of the SIMD headers is inlined by force: one that the linker shared between
// the two compilations could be the AVX-512 one on a processor that has only AVX2.
#define LODESTONE_SIMD static inline __attribute__((always_inline))

namespace lodestone::LODESTONE_SIMD_NAMESPACE {

inline constexpr int kLanes = 16;

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE
