#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lodestone {

// SplitMix64 (Steele, Lea, Flood 2014): the same numbers on every machine and library, so that a
// seed names a prompt for ever.
class NeedleRandom {
 public:
  explicit NeedleRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  // In [0, limit); REQUIRES: 0 < limit. The bias is below limit / 2^64.
  uint64_t Below(uint64_t limit) { return Next() % limit; }
  const std::string& Pick(const std::vector<std::string>& words) {
    return words[Below(words.size())];
  }
  // Exactly `digits` digits, no leading zero.
  std::string Number(int digits) {
    uint64_t low = 1;
    for (int i = 1; i < digits; ++i) low *= 10;
    return std::to_string(low + Below(9 * low));
  }

 private:
  uint64_t state_;
};

}  // namespace lodestone
