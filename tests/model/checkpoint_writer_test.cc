#include "model/checkpoint_writer.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

std::string ConfigText() {
  std::ifstream stream(std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny/config.json");
  std::ostringstream text;
  text << stream.rdbuf();
  return std::move(text).str();
}

TEST(CheckpointWriterTest, AFullDiskIsTheErrorOfEveryLaterCall) {
  const TempDir folder;
  const std::string directory = folder.path() + "/checkpoint";
  absl::StatusOr<CheckpointWriter> writer = CheckpointWriter::Create(directory, ConfigText(), {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  // The first shard is written to a device that is always full.
  const int64_t num_shards = writer->config().num_layers + 2;
  char name[64];
  std::snprintf(name, sizeof(name), "/model-00001-of-%05d.safetensors",
                static_cast<int>(num_shards));
  std::filesystem::create_symlink("/dev/full", directory + name);
  const std::vector<std::byte> bytes(static_cast<size_t>(TensorBytes(writer->order().front())));
  errno = EACCES;  // of an earlier call that has nothing to do with it
  const absl::Status full = writer->Append(bytes);
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("No space left on device"));
  errno = EACCES;
  EXPECT_EQ(writer->Append(bytes), full);
}

}  // namespace
}  // namespace lodestone
