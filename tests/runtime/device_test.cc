#include "runtime/device.h"

#include <gtest/gtest.h>

#include "base/thread_pool.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {
namespace {

// No machine has so many.
constexpr DeviceId kNoSuchDevice{.cuda = 4096};

TEST(DeviceTest, NamesParseBack) {
  for (const char* name : {"cpu", "cuda:0", "cuda:17"}) {
    EXPECT_EQ(Name(ParseDevice(name).value()), name);
  }
}

TEST(DeviceTest, OtherNamesAreRefusedWithTheText) {
  for (const char* name : {"", "cuda", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "gpu:0", "CPU"}) {
    const absl::Status status = ParseDevice(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_NE(status.message().find("'" + std::string(name) + "'"), absl::string_view::npos)
        << name;
  }
}

TEST(DeviceTest, TheHostOpensAndAnAbsentDeviceSaysWhy) {
  EXPECT_TRUE(OpenDevice(kHostDevice).ok());
  const absl::Status status = OpenDevice(kNoSuchDevice);
  EXPECT_TRUE(status.code() == absl::StatusCode::kUnimplemented ||
              status.code() == absl::StatusCode::kUnavailable)
      << status;
  EXPECT_FALSE(status.message().empty());
}

TEST(DeviceTest, NothingCanBeMadeOnAnAbsentDevice) {
  ThreadPool pool(1);
  EXPECT_FALSE(Stream::Create(kNoSuchDevice, &pool).ok());
  EXPECT_FALSE(Buffer::Allocate(64, WorkMemory(kNoSuchDevice)).ok());
  EXPECT_FALSE(Buffer::Allocate(64, SharedMemory(kNoSuchDevice)).ok());
}

TEST(DeviceTest, AHostStreamCopiesAndFillsInPlace) {
  ThreadPool pool(1);
  Stream stream(&pool);
  float values[4] = {};
  stream.FillFloats(values, -2.5f, 4);
  EXPECT_EQ(values[3], -2.5f);
  stream.FillBytes(values, 0, 8);
  float copy[4] = {9, 9, 9, 9};
  stream.Copy(copy, values, sizeof(copy));
  EXPECT_TRUE(stream.Synchronize().ok());
  EXPECT_EQ(copy[0], 0.0f);
  EXPECT_EQ(copy[2], -2.5f);
}

}  // namespace
}  // namespace lodestone
