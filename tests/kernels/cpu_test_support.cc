#include "tests/kernels/cpu_test_support.h"

#include <gtest/gtest.h>

#include "kernels/cpu/cpu_ops.h"

namespace lodestone {

std::vector<CpuBackend> CpuBackends() {
  std::vector<CpuBackend> backends;
  for (CpuIsa isa : {CpuIsa::kAvx2, CpuIsa::kAvx512}) {
    if (!CpuHas(isa)) continue;
    for (int num_threads : {1, 2, 3}) {
      auto ops = MakeCpuOps(num_threads, isa);
      const std::string name = std::string(ops->name()) + " x" + std::to_string(num_threads);
      backends.push_back({name, std::move(ops), std::make_unique<TestStream>(num_threads)});
    }
  }
  return backends;
}

OpResult RunOnAllBackends(const OpRun& op) {
  OpResult first;
  for (CpuBackend& backend : CpuBackends()) {
    OpResult result = op(*backend.ops, *backend.stream);
    if (first.bytes.empty()) {
      first = std::move(result);
    } else {
      EXPECT_TRUE(result.bytes == first.bytes) << backend.name << " differs";
    }
  }
  return first;
}

}  // namespace lodestone
