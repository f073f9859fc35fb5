#include <gtest/gtest.h>

#include "tests/nccl/decode_process.h"
#include "tests/nccl/link_pair.h"

int main(int argc, char** argv) {
  if (const auto status = lodestone::nccl::RunAsDecodeProcess()) return *status;
  if (const auto status = lodestone::nccl::RunAsChild()) return *status;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
