// The op tests of tests/kernels with the CUDA backend in the place of the CPU's: one body for both.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/gpu/backend/mirror_ops.h"
#include "tests/kernels/cpu_test_support.h"

namespace lodestone {

std::vector<CpuBackend> CpuBackends() {
  std::vector<CpuBackend> backends;
  std::string why;
  std::unique_ptr<Ops> ops = MakeMirrorOps(&why);
  EXPECT_NE(ops, nullptr) << why;
  backends.push_back({"cuda", std::move(ops), std::make_unique<TestStream>(1)});
  return backends;
}

OpResult RunOnAllBackends(const OpRun& op) {
  static TestStream stream(1);
  return op(Mirror(), stream);
}

}  // namespace lodestone
