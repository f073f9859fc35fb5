#pragma once

#include <cstdint>

namespace lodestone {

// Counter-based randomness: a value is a function of (seed, counter) alone, so a token that is
// sampled again on another worker comes out the same. SplitMix64's finaliser over a Weyl sequence
// (Steele, Lea, Flood 2014), applied twice so that neighbouring seeds share nothing.
inline uint64_t RandomBits(uint64_t seed, uint64_t counter) {
  auto mix = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) + (counter + 1) * 0x9e3779b97f4a7c15ull);
}

// Uniform in [0, 1), 53 bits.
inline double RandomUniform(uint64_t seed, uint64_t counter) {
  return static_cast<double>(RandomBits(seed, counter) >> 11) * 0x1.0p-53;
}

}  // namespace lodestone
