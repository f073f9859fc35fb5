#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace lodestone {

// Every class of bytes a worker may use. Names are the `pool` labels of the memory metrics.
enum class MemoryPool : uint8_t {
  kWeights,
  kLatentsIndexed,
  kLatentsDense,
  kIndexKeys,
  kExactIndexKeys,
  kRingWindows,
  kCompressorStates,
  kStaging,
  kTransport,
  kScratch,
  kGraphs,
};
inline constexpr int kNumMemoryPools = 11;

constexpr std::string_view Name(MemoryPool pool) {
  constexpr std::string_view kNames[kNumMemoryPools] = {
      "weights",      "latents_indexed",   "latents_dense", "index_keys", "exact_index_keys",
      "ring_windows", "compressor_states", "staging",       "transport",  "scratch",
      "graphs"};
  return kNames[static_cast<int>(pool)];
}

// A number of bytes for every pool; 0 unless set.
class PoolBytes {
 public:
  int64_t& operator[](MemoryPool pool) { return bytes_[static_cast<int>(pool)]; }
  int64_t operator[](MemoryPool pool) const { return bytes_[static_cast<int>(pool)]; }
  int64_t total() const {
    int64_t sum = 0;
    for (int64_t bytes : bytes_) sum += bytes;
    return sum;
  }
  // Adds `count` times `other`, pool by pool.
  void Add(const PoolBytes& other, int64_t count = 1) {
    for (int i = 0; i < kNumMemoryPools; ++i) bytes_[i] += count * other.bytes_[i];
  }
  friend bool operator==(const PoolBytes&, const PoolBytes&) = default;

 private:
  std::array<int64_t, kNumMemoryPools> bytes_{};
};

}  // namespace lodestone
