#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/decode/worker_pair.h"

// The first token comes from prefill and the others from decode: together they are as many as were
// asked for, none lost and none twice, with the ids of one process.

namespace lodestone {
namespace {

using testing::SizeIs;

TEST(TokenCountTest, IsThatOfTheRequestFromOneToEight) {
  PrefillConfig prefill_config;
  prefill_config.worker = SmallWorkerConfig();
  prefill_config.grpc_port = prefill_config.metrics_port = 0;
  DecodeConfig decode_config;
  decode_config.worker = SmallWorkerConfig();
  decode_config.grpc_port = decode_config.metrics_port = 0;
  const RunningPrefill prefill(prefill_config);
  const RunningDecode decode(decode_config);
  const auto engine = Engine::Create(SmallEngineOptions(SmallWorkerConfig())).value();
  for (const int64_t length : {1, 127}) {
    for (int32_t count = 1; count <= 8; ++count) {
      SCOPED_TRACE(std::to_string(length) + " prompt tokens, " + std::to_string(count) +
                   " new ones");
      const GenerateInput input{
          SomePrompt(length, 5),
          {.ignore_eos = true, .max_new_tokens = count, .logprobs = true, .top_logprobs = 2}};
      ScriptedRequest request(prefill, decode, input.tokens, input.sampling);
      ASSERT_EQ(request.Answer(), absl::OkStatus());
      EXPECT_THAT(request.tokens(), SizeIs(count));
      EXPECT_EQ(request.finish(), FinishReason::kLength);
      EXPECT_LE(request.num_terminal_events(), 1);
      EXPECT_EQ(request.tokens(),
                Generate(*engine, std::span(&input, 1), {.max_sequences = 1}).value()[0].tokens);
      if (count == 1) request.Cancel();  // as a router does with a lease that it has no use for
    }
  }
  EXPECT_TRUE(prefill.BecomesIdle());
  EXPECT_TRUE(decode.BecomesIdle());
}

}  // namespace
}  // namespace lodestone
