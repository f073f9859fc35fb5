#pragma once

#include <ostream>
#include <string>

namespace lodestone {

// Where the two ends of links over NCCL are that are processes of their own: on two GPUs of one
// host, or on one GPU as processes that NCCL takes for two hosts, since their NCCL_HOSTID differ.
// It then uses its network.
struct Placement {
  const char* name;
  bool two_hosts;
  // The GPU of the one end; that of the other is GPU 0.
  int other_gpu() const { return two_hosts ? 0 : 1; }
  std::string other_device() const { return "cuda:" + std::to_string(other_gpu()); }
};
inline constexpr Placement kTwoGpus = {"TwoGpus", false};
inline constexpr Placement kTwoHostsOnOneGpu = {"TwoHostsOnOneGpu", true};
inline void PrintTo(const Placement& placement, std::ostream* out) { *out << placement.name; }

}  // namespace lodestone
