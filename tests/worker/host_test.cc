#include "worker/host.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "kvcache/ledger.h"
#include "proto/lodestone/v1/admin.grpc.pb.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

WorkerConfig SmallConfig() {
  WorkerConfig config;
  config.model = std::string(LODESTONE_SOURCE_DIR) + "/models/needle-tiny";
  config.threads = 1;
  config.memory = {int64_t{128} << 20};
  config.max_sequences = 4;
  config.max_context = 2048;
  return config;
}

absl::StatusOr<std::unique_ptr<WorkerHost>> MakeHost(v1::WorkerRole role,
                                                     const WorkerConfig& config) {
  return WorkerHost::Create(role, config, ToEngineOptions(config, 64).value(), 0);
}

v1::GetStatusReply GetStatus(int port) {
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  v1::GetStatusReply reply;
  EXPECT_TRUE(stub->GetStatus(&context, {}, &reply).ok());
  return reply;
}

TEST(WorkerHostTest, AdminShowsTheLedgerAsItIs) {
  const auto host = MakeHost(v1::WORKER_ROLE_DECODE, SmallConfig()).value();
  ASSERT_TRUE(host->Serve(0, {}).ok());
  Ledger& ledger = host->engine().cache().ledger();
  ASSERT_TRUE(ledger.Reserve(LeaseId(7), ReservationFor(300)).ok());
  host->board().Set({.state = LoopState::kReady, .queued_tokens = 12});
  const v1::GetStatusReply status = GetStatus(host->grpc_port());
  EXPECT_EQ(status.instance_id(), host->instance().ToString());
  EXPECT_EQ(status.role(), v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(status.load().state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(status.load().queued_tokens(), 12);
  EXPECT_EQ(status.load().free_sequences(), 3);
  EXPECT_EQ(status.live_leases(), 1);
  EXPECT_EQ(status.reserved_bytes(), ledger.Snapshot().reserved_bytes);
  EXPECT_EQ(status.orphan_bytes(), 0);
  int64_t capacity = 0;
  for (const v1::MemoryPoolStatus& pool : status.pools()) capacity += pool.capacity_bytes();
  EXPECT_EQ(capacity, host->engine().plan().capacity.total());
}

TEST(WorkerHostTest, AdminShowsEveryLinkWithItsTransport) {
  const auto host = MakeHost(v1::WORKER_ROLE_PREFILL, SmallConfig()).value();
  ASSERT_TRUE(host->Serve(0, {}).ok());
  host->board().Set({.state = LoopState::kReady,
                     .links = {{.decode_instance = "d0", .up = true, .transport = "nccl"},
                               {.decode_instance = "d1", .transport = "tcp", .reason = "no GPU"}}});
  const v1::GetStatusReply status = GetStatus(host->grpc_port());
  ASSERT_EQ(status.links_size(), 2);
  EXPECT_EQ(status.links(0).decode_instance_id(), "d0");
  EXPECT_TRUE(status.links(0).up());
  EXPECT_EQ(status.links(0).transport(), "nccl");
  EXPECT_FALSE(status.links(1).up());
  EXPECT_EQ(status.links(1).reason(), "no GPU");
}

// A processor may need seconds for a step: its loop does not hang, and must not count as unhealthy.
TEST(WorkerHostTest, EveryLayerOfAStepIsASignOfLife) {
  const auto host = MakeHost(v1::WORKER_ROLE_PREFILL, SmallConfig()).value();
  Engine& engine = host->engine();
  const auto sequence = engine.NewSequence({1, 2, 3}, 0, {.max_new_tokens = 1}, 4).value();
  host->board().Set({.state = LoopState::kReady});
  host->board().SetHangLimit(std::chrono::milliseconds(300));
  std::this_thread::sleep_for(std::chrono::milliseconds(310));
  EXPECT_EQ(host->board().Get().state, LoopState::kUnhealthy);
  const StepPart part{.sequence = sequence.get(), .num_tokens = 3};
  ASSERT_TRUE(engine.Step(std::span(&part, 1)).ok());
  EXPECT_EQ(host->board().Get().state, LoopState::kReady);
}

TEST(WorkerHostTest, AnOperatorsDrainIsPassedOn) {
  const auto host = MakeHost(v1::WORKER_ROLE_DECODE, SmallConfig()).value();
  ASSERT_TRUE(host->Serve(0, {}).ok());
  host->board().Set({.state = LoopState::kReady, .live_leases = 3, .num_steps = 7});
  const auto stub = v1::AdminService::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(host->grpc_port()),
                          grpc::InsecureChannelCredentials()));
  EXPECT_FALSE(host->drain().requested());
  v1::DrainRequest request;
  v1::DrainReply reply;
  request.set_timeout_ms(-1);
  grpc::ClientContext refused;
  EXPECT_EQ(stub->Drain(&refused, request, &reply).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(host->drain().requested());
  request.set_timeout_ms(1500);
  grpc::ClientContext context;
  ASSERT_TRUE(stub->Drain(&context, request, &reply).ok());
  EXPECT_EQ(reply.instance_id(), host->instance().ToString());
  EXPECT_EQ(reply.role(), v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(reply.live_requests(), 3);
  EXPECT_TRUE(host->drain().requested());
  EXPECT_EQ(host->drain().TimeoutOr(std::chrono::seconds(120)), std::chrono::milliseconds(1500));
  EXPECT_EQ(GetStatus(host->grpc_port()).num_steps(), 7);
}

TEST(WorkerHostTest, ARouterWithoutAPortIsRefusedBeforeTheModelIsLoaded) {
  WorkerConfig config = SmallConfig();
  const EngineOptions options = ToEngineOptions(config, 64).value();
  config.model = "/nowhere";
  config.routers = {"localhost"};
  const auto host = WorkerHost::Create(v1::WORKER_ROLE_DECODE, config, options, 0);
  EXPECT_EQ(host.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(host.status().message()), HasSubstr("--router is \"localhost\""));
}

TEST(WorkerHostTest, MetricsShowTheLedgerAndTheQueues) {
  const auto host = MakeHost(v1::WORKER_ROLE_PREFILL, SmallConfig()).value();
  ASSERT_TRUE(host->engine().cache().ledger().Reserve(LeaseId(7), ReservationFor(300)).ok());
  const MemorySnapshot memory = host->engine().cache().ledger().Snapshot();
  host->board().Set({.state = LoopState::kReady, .queued_tokens = 12, .queued_requests = 3});
  const std::string page = host->metrics().RenderText();
  EXPECT_THAT(page, HasSubstr("lodestone_prefill_queued_tokens 12\n"));
  EXPECT_THAT(page, HasSubstr("lodestone_prefill_queue_depth 3\n"));
  EXPECT_THAT(page, HasSubstr("lodestone_memory_reserved_bytes " +
                              std::to_string(memory.reserved_bytes) + "\n"));
  EXPECT_THAT(page, HasSubstr("lodestone_memory_orphan_bytes 0\n"));
  EXPECT_THAT(page, HasSubstr("pool=\"weights\""));
  EXPECT_THAT(page, HasSubstr("lodestone_config_info{"));
  EXPECT_THAT(page, HasSubstr("model=\"needle-tiny\""));
}

TEST(WorkerHostTest, APortThatIsTakenIsNamed) {
  const auto first = MakeHost(v1::WORKER_ROLE_DECODE, SmallConfig()).value();
  ASSERT_TRUE(first->Serve(0, {}).ok());
  const auto second = MakeHost(v1::WORKER_ROLE_DECODE, SmallConfig()).value();
  const absl::Status status = second->Serve(first->grpc_port(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::to_string(first->grpc_port())));
}

TEST(WorkerHostTest, AnAddressThatNobodyCanReachNeedsAnother) {
  WorkerConfig config = SmallConfig();
  config.bind = "0.0.0.0";
  const auto host = MakeHost(v1::WORKER_ROLE_DECODE, config);
  EXPECT_EQ(host.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(host.status().message()), HasSubstr("--advertise"));
}

TEST(WorkerHostTest, TooLittleMemoryIsRefusedWithBothNumbers) {
  WorkerConfig config = SmallConfig();
  config.memory = {int64_t{1} << 20};
  const auto host = MakeHost(v1::WORKER_ROLE_DECODE, config);
  EXPECT_EQ(host.status().code(), absl::StatusCode::kResourceExhausted) << host.status();
  EXPECT_THAT(std::string(host.status().message()), HasSubstr("1048576"));
}

}  // namespace
}  // namespace lodestone
