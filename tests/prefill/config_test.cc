#include "prefill/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using testing::HasSubstr;

PrefillConfig WithChunk(const std::string& text) {
  PrefillConfig config;
  config.chunk_tokens = text;
  return config;
}

TEST(PrefillConfigTest, AChunkIsANumberOfTokens) {
  EXPECT_EQ(ChunkTokens(WithChunk("1")).value(), 1);
  for (const char* text : {"0", "-3", "", "12x", "99999999999999999999", "Whole"}) {
    const absl::Status status = ChunkTokens(WithChunk(text)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + text + "\""));
  }
}

TEST(PrefillConfigTest, AChunkOfItsOwnAccordIsLongerOnACudaDevice) {
  PrefillConfig config;
  EXPECT_EQ(ChunkTokens(config).value(), 512);
  config.worker.device = "cuda:1";
  EXPECT_EQ(ChunkTokens(config).value(), 4096);
  config.worker.device = "gpu";
  EXPECT_THAT(std::string(ChunkTokens(config).status().message()), HasSubstr("'gpu'"));
}

TEST(PrefillConfigTest, AWholePromptNeedsALongestOne) {
  PrefillConfig config = WithChunk("whole");
  EXPECT_THAT(std::string(ChunkTokens(config).status().message()), HasSubstr("--max-context"));
  config.worker.max_context = 3000;
  EXPECT_EQ(ChunkTokens(config).value(), 3000);
}

}  // namespace
}  // namespace lodestone
