// The whole hand-off between two GPUs, from pages of one cache into pages of another: real sender and
// receiver, each with its loop in a thread, control over gRPC, slots over NCCL. Prints rates beside the
// raw peer copy of the same run.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <regex>
#include <thread>

#include "base/waker.h"
#include "kernels/cuda/cuda_ops.h"
#include "kvtransfer/grpc_link.h"
#include "kvtransfer/rows.h"
#include "tests/kvcache/shapes.h"
#include "tests/kvtransfer/worker_pair.h"
#include "tests/nccl/link_pair.h"
#include "worker/grpc_server.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;

constexpr DeviceId kPrefillGpu{0};
constexpr DeviceId kDecodeGpu{1};

// What a worker has on its GPU.
struct GpuSide {
  explicit GpuSide(DeviceId device, const CacheShape& shape, int64_t tokens)
      : stream(Stream::Create(device, &threads).value()), ops(MakeCudaOps(device).value()) {
    PlanInput input;
    input.shape = shape;
    input.memory_limit_bytes = int64_t{8} << 30;
    input.max_sequences = 6;
    input.max_context = tokens;
    pool = CachePool::Create(PlanMemory(input).value(), FreedPages::kKeep, &stream).value();
  }
  ThreadPool threads{1};
  Stream stream;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<CachePool> pool;
};

// Bytes that differ from row run to row run.
void FillRuns(const std::vector<RowRun>& runs, DeviceId device) {
  cudaSetDevice(device.cuda);
  int value = 1;
  for (const RowRun& run : runs) {
    for (int part = 0; part < run.num_parts; ++part) {
      value = value * 37 % 251;
      cudaMemset2DAsync(run.part[part], static_cast<size_t>(run.part_stride[part]), value,
                        static_cast<size_t>(run.part_bytes[part]),
                        static_cast<size_t>(run.num_rows));
    }
  }
  cudaDeviceSynchronize();
}

std::vector<std::byte> BytesOf(const RowRun& run) {
  std::vector<std::byte> bytes;
  for (int part = 0; part < run.num_parts; ++part) {
    std::vector<std::byte> rows(static_cast<size_t>(run.num_rows * run.part_bytes[part]));
    cudaMemcpy2D(rows.data(), static_cast<size_t>(run.part_bytes[part]), run.part[part],
                 static_cast<size_t>(run.part_stride[part]),
                 static_cast<size_t>(run.part_bytes[part]), static_cast<size_t>(run.num_rows),
                 cudaMemcpyDeviceToHost);
    bytes.insert(bytes.end(), rows.begin(), rows.end());
  }
  return bytes;
}

class HandoffPair {
 public:
  HandoffPair(int ctas, int64_t slot_bytes, int num_slots, int64_t tokens)
      : shape_(FlashShape()),
        prefill_(kPrefillGpu, shape_, tokens),
        decode_gpu_(kDecodeGpu, shape_, tokens),
        decode_(TinyShape()),
        dialer_(MakeWakingEndpoint(Side::kPrefill, kPrefillGpu, ctas, prefill_waker_)),
        listener_(MakeWakingEndpoint(Side::kDecode, kDecodeGpu, ctas, decode_waker_)),
        control_(grpc::InsecureChannelCredentials(), Times(), [w = prefill_waker_] { w->Wake(); }),
        service_(Times(), [w = decode_waker_] { w->Wake(); }) {
    decode_.pool = std::move(decode_gpu_.pool);
    server_ = StartGrpcServer("127.0.0.1", 0, {&service_}).value();
    sender_ = SlotSender::Create({.instance = InstanceId::Random(),
                                  .layout = TinyLayout(shape_),
                                  .ops = prefill_.ops.get(),
                                  .stream = &prefill_.stream,
                                  .clock = RealClock(),
                                  .control = &control_,
                                  .data = {&dialer_},
                                  .metrics = &metrics_,
                                  .num_slots = num_slots,
                                  .slot_bytes = slot_bytes,
                                  .times = Times()})
                  .value();
    receiver_ = SlotReceiver::Create({.instance = instance_,
                                      .layout = TinyLayout(shape_),
                                      .shape = shape_,
                                      .ops = decode_gpu_.ops.get(),
                                      .stream = &decode_gpu_.stream,
                                      .clock = RealClock(),
                                      .control = &service_,
                                      .data = {&listener_},
                                      .metrics = &decode_metrics_,
                                      .num_slots = num_slots,
                                      .slot_bytes = slot_bytes,
                                      .times = Times()})
                    .value();
    loop_ = std::thread([this] { DecodeLoop(); });
  }
  ~HandoffPair() {
    sender_.reset();
    stop_ = true;
    decode_waker_->Wake();
    loop_.join();
    service_.Shutdown();
    receiver_.reset();
    server_.Shutdown(std::chrono::seconds(2));
    decode_.caches.clear();
  }

  CachePool& prefill_pool() { return *prefill_.pool; }
  const CacheShape& shape() const { return shape_; }

  // Seconds until `count` requests with that cache, begun together, are all adopted; less than 0 if
  // one fails. Their leases are in `leases`.
  double HandOver(const SequenceCache& cache, int64_t tokens, int count,
                  std::vector<LeaseId>* leases) {
    leases->clear();
    {
      MutexLock lock(&mutex_);
      for (int i = 0; i < count; ++i) leases->push_back(decode_.Reserve(tokens));
    }
    const TimePoint start = RealClock()->Now();
    for (LeaseId lease : *leases) {
      sender_->Begin(lease, instance_, "127.0.0.1:" + std::to_string(server_.port), &cache);
      sender_->GrowTo(lease, tokens);
      sender_->Finish(lease, WorkerPair::MakeHandoff(tokens));
    }
    int adopted = 0;
    while (SecondsSince(start) < 10) {
      for (const HandoffOutcome& outcome : sender_->Pump()) {
        EXPECT_TRUE(outcome.status.ok()) << outcome.status;
        if (!outcome.status.ok()) return -1;
        if (++adopted == count) return SecondsSince(start);
      }
      if (!sender_->MovesRows()) prefill_waker_->WaitUntil(RealClock()->Now() + milliseconds(5));
    }
    return -1;
  }
  SequenceCache& Arrived(LeaseId lease) { return *decode_.caches.at(lease); }
  void Free(const std::vector<LeaseId>& leases) {
    MutexLock lock(&mutex_);
    for (LeaseId lease : leases) {
      decode_.Free(lease);
      decode_.adopted.erase(lease);
    }
  }

  // "pack 0.05 ms" and so on: means of the phases so far, as each side counts them.
  std::string Phases() {
    const std::regex line("seconds_(sum|count)\\{[^}]*phase=\"([a-z]+)\"[^}]*\\} ([0-9.e+-]+)");
    std::string text;
    for (Metrics* metrics : {&metrics_, &decode_metrics_}) {
      const std::string all = metrics->RenderText();
      std::map<std::string, std::pair<double, double>> phases;
      for (std::sregex_iterator it(all.begin(), all.end(), line), end; it != end; ++it) {
        auto& [sum, count] = phases[(*it)[2]];
        ((*it)[1] == "sum" ? sum : count) += std::stod((*it)[3]);
      }
      for (const auto& [phase, total] : phases) {
        char one[64];
        std::snprintf(one, sizeof(one), " %s %.3f", phase.c_str(), 1e3 * total.first / total.second);
        text += one;
      }
      text += metrics == &metrics_ ? " |" : " ms";
    }
    return text;
  }

 private:
  static LinkTimes Times() {
    LinkTimes times;
    times.spin = milliseconds(1);  // as workers with links over NCCL have it
    return times;
  }
  static std::unique_ptr<Endpoint> MakeWakingEndpoint(Side side, DeviceId device, int ctas,
                                                      std::shared_ptr<Waker> waker) {
    return Endpoint::Create({.device = device.cuda,
                             .side = side,
                             .ctas = ctas,
                             .max_links = 2,
                             .wake = [waker] { waker->Wake(); }})
        .value();
  }

  void DecodeLoop() {
    while (!stop_) {
      if (!receiver_->MovesRows()) decode_waker_->WaitUntil(RealClock()->Now() + milliseconds(5));
      MutexLock lock(&mutex_);
      receiver_->Pump(decode_);
    }
  }

  const CacheShape shape_;
  const std::shared_ptr<Waker> prefill_waker_ = std::make_shared<Waker>();
  const std::shared_ptr<Waker> decode_waker_ = std::make_shared<Waker>();
  GpuSide prefill_;
  GpuSide decode_gpu_;
  Mutex mutex_;  // of decode_, which both threads use
  FakeDecode decode_;
  Metrics metrics_{MetricRole::kRolePrefill};
  Metrics decode_metrics_{MetricRole::kRoleDecode};
  Dialer dialer_;
  Listener listener_;
  GrpcDialer control_;
  GrpcLinkService service_;
  GrpcServer server_;
  const InstanceId instance_ = InstanceId::Random();
  std::unique_ptr<SlotSender> sender_;
  std::unique_ptr<SlotReceiver> receiver_;
  std::atomic<bool> stop_ = false;
  std::thread loop_;
};

class HandoffRateTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = WhyNoNccl(2); !why.empty()) GTEST_SKIP() << why;
  }
};

// Pack and scatter of one slot by themselves: what the hand-off adds to a send.
TEST_F(HandoffRateTest, PackAndScatterAlone) {
  constexpr int64_t kTokens = 32'768;
  GpuSide gpu(kPrefillGpu, FlashShape(), kTokens);
  auto cache = gpu.pool->MakeSequenceFor(kTokens).value();
  ASSERT_TRUE(cache->Reserve(kTokens).ok());
  const std::vector<RowRun> all = cache->AppendRuns(0, kTokens);
  FillRuns(all, kPrefillGpu);
  for (int64_t mib : {8, 32}) {
    const int64_t slot_bytes = mib << 20;
    StagingSlots slots =
        StagingSlots::Allocate(2, slot_bytes, WorkMemory(kPrefillGpu), &gpu.stream).value();
    const int slot = slots.Take().value();
    TimePoint start = RealClock()->Now();
    RunPlace place;
    const std::vector<RowRun> runs = TakeRows(all, INT64_MAX, slot_bytes, place);
    const double slice_us = 1e6 * SecondsSince(start);
    const int64_t rows = CountRows(runs);
    RowDigests packed = {};
    RowDigests scattered = {};
    for (bool pack : {true, false}) {
      constexpr int kRepeats = 20;
      double launch = 0;
      for (int repeat = -1; repeat < kRepeats; ++repeat) {
        if (repeat == 0) {
          ASSERT_TRUE(slots.stream().Synchronize().ok());
          start = RealClock()->Now();
        }
        const MoveRowsParams params{.runs = runs,
                                    .slot = slots.bytes(slot).data(),
                                    .slot_bytes = slot_bytes,
                                    .digests = slots.BeginMove(slot)};
        const TimePoint before = RealClock()->Now();
        pack ? gpu.ops->PackRows(params, slots.stream())
             : gpu.ops->ScatterRows(params, slots.stream());
        launch += repeat < 0 ? 0 : SecondsSince(before);
        slots.EndMove(slot);
      }
      ASSERT_TRUE(slots.stream().Synchronize().ok());
      const double us = 1e6 * SecondsSince(start) / kRepeats;
      ASSERT_TRUE(slots.Moved(slot, pack ? packed : scattered).value());
      std::printf("RESULT %s of %lld MiB, %zu runs, %lld rows: %.1f us = %.0f GB/s, launching %.1f us, "
                  "slicing %.1f us\n",
                  pack ? "pack" : "scatter", static_cast<long long>(mib), runs.size(),
                  static_cast<long long>(rows), us,
                  static_cast<double>(TotalBytes(CountKinds(runs))) / us / 1e3,
                  1e6 * launch / kRepeats, slice_us);
    }
    EXPECT_EQ(std::memcmp(packed, scattered, sizeof(packed)), 0);
    slots.GiveBack(slot);
  }
}

TEST_F(HandoffRateTest, FromPagesIntoPages) {
  constexpr int64_t kMostTokens = 160'000;
  const double copy = PeerCopyRate(size_t{1} << 30);
  std::printf("RESULT raw peer copy of 1 GiB: %.1f GB/s\n", copy / 1e9);
  struct Case {
    int ctas;
    int64_t slot_mib;
    int num_slots;
  };
  for (const Case& c : {Case{8, 32, 16}, Case{16, 8, 32}, Case{16, 16, 32}, Case{16, 32, 16},
                        Case{16, 32, 32}, Case{24, 32, 32}}) {
    HandoffPair pair(c.ctas, c.slot_mib << 20, c.num_slots, kMostTokens);
    auto cache = pair.prefill_pool().MakeSequenceFor(kMostTokens).value();
    ASSERT_TRUE(cache->Reserve(kMostTokens).ok());
    FillRuns(AllRuns(*cache, kMostTokens), kPrefillGpu);
    std::vector<LeaseId> leases;
    ASSERT_GT(pair.HandOver(*cache, 300, 1, &leases), 0);  // the link comes up
    pair.Free(leases);
    for (const auto& [tokens, count] : {std::pair{int64_t{10'500}, 1}, {int64_t{10'500}, 4},
                                        {int64_t{40'000}, 1}, {kMostTokens, 1}, {kMostTokens, 3}}) {
      const std::vector<RowRun> runs = AllRuns(*cache, tokens);
      const double bytes = count * static_cast<double>(TotalBytes(CountKinds(runs)));
      double best = 1e9;
      for (int repeat = 0; repeat < 4; ++repeat) {
        const double seconds = pair.HandOver(*cache, tokens, count, &leases);
        ASSERT_GT(seconds, 0);
        best = std::min(best, seconds);
        if (repeat == 0) {
          const std::vector<RowRun> arrived = AllRuns(pair.Arrived(leases.back()), tokens);
          for (size_t i = 0; i < runs.size(); i += 1 + runs.size() / 40) {
            ASSERT_EQ(BytesOf(runs[i]), BytesOf(arrived[i])) << i;
          }
        }
        pair.Free(leases);
      }
      std::printf("RESULT hand-off of %d x %lld tokens, %.0f MB, %d CTAs, %d slots of %lld MiB: %.3f ms, "
                  "%.1f GB/s, %.3f of the copy\n",
                  count, static_cast<long long>(tokens), bytes / 1e6, c.ctas, c.num_slots,
                  static_cast<long long>(c.slot_mib), 1e3 * best, bytes / best / 1e9,
                  bytes / best / copy);
    }
    std::printf("  mean phases:%s\n", pair.Phases().c_str());
  }
}

}  // namespace
}  // namespace lodestone::nccl
