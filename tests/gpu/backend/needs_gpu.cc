#include <gtest/gtest.h>

#include "runtime/device.h"

// Every test of this binary needs cuda:0.
namespace lodestone {
namespace {

class NeedsGpu : public ::testing::Environment {
 public:
  void SetUp() override {
    const absl::Status opened = OpenDevice({.cuda = 0});
    if (!opened.ok()) GTEST_SKIP() << opened.message();
  }
};

const ::testing::Environment* const kNeedsGpu =
    ::testing::AddGlobalTestEnvironment(new NeedsGpu);

}  // namespace
}  // namespace lodestone
