#include "tests/nccl/handoff_pair.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <regex>

#include "kernels/cuda/cuda_ops.h"
#include "kvtransfer/rows.h"
#include "tests/kvcache/shapes.h"
#include "tests/nccl/link_pair.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;

}  // namespace

GpuSide::GpuSide(DeviceId device, const CacheShape& shape, int64_t tokens)
    : stream(Stream::Create(device, &threads).value()), ops(MakeCudaOps(device).value()) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{8} << 30;
  input.max_sequences = 6;
  input.max_context = tokens;
  pool = CachePool::Create(PlanMemory(input).value(), FreedPages::kKeep, &stream).value();
}

std::vector<RowRun> PiecesOf(const std::vector<RowRun>& runs) {
  std::vector<RowRun> pieces;
  for (const RowRun& run : runs) {
    for (int64_t row = 0; row < run.num_rows;) {
      int64_t count = run.num_rows - row;
      if (run.pages != nullptr) {
        const int64_t in_page = (run.first_in_page + row) % run.rows_per_page;
        count = std::min(count, run.rows_per_page - in_page);
      }
      pieces.push_back(run.Rows(row, count));
      row += count;
    }
  }
  return pieces;
}

void FillRuns(const std::vector<RowRun>& runs, DeviceId device) {
  cudaSetDevice(device.cuda);
  int value = 1;
  for (const RowRun& run : PiecesOf(runs)) {
    for (int part = 0; part < run.num_parts; ++part) {
      value = value * 37 % 251;
      cudaMemset2DAsync(run.At(part, 0), static_cast<size_t>(run.part_stride[part]), value,
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
    cudaMemcpy2D(rows.data(), static_cast<size_t>(run.part_bytes[part]), run.At(part, 0),
                 static_cast<size_t>(run.part_stride[part]),
                 static_cast<size_t>(run.part_bytes[part]), static_cast<size_t>(run.num_rows),
                 cudaMemcpyDeviceToHost);
    bytes.insert(bytes.end(), rows.begin(), rows.end());
  }
  return bytes;
}

LinkTimes HandoffPair::Times() {
  LinkTimes times;
  times.spin = milliseconds(3);  // as workers with links over NCCL have it
  return times;
}

HandoffPair::HandoffPair(Options options)
    : shape_(FlashShape()),
      options_(std::move(options)),
      prefill_(options_.prefill_gpu, shape_, options_.tokens),
      decode_gpu_(options_.decode_gpu, shape_, options_.tokens),
      decode_(TinyShape()),
      control_(grpc::InsecureChannelCredentials(), Times(),
               [waker = options_.prefill_waker] { waker->Wake(); }),
      service_(Times(), [waker = options_.decode_waker] { waker->Wake(); }) {
  decode_.pool = std::move(decode_gpu_.pool);
  server_ = StartGrpcServer("127.0.0.1", 0, {&service_}).value();
  sender_ = SlotSender::Create({.instance = InstanceId::Random(),
                                .layout = TinyLayout(shape_),
                                .ops = prefill_.ops.get(),
                                .stream = &prefill_.stream,
                                .clock = RealClock(),
                                .control = &control_,
                                .data = {options_.dialer.get()},
                                .metrics = &metrics_,
                                .num_slots = options_.num_slots,
                                .slot_bytes = options_.slot_bytes,
                                .times = Times()})
                .value();
  receiver_ = SlotReceiver::Create({.instance = instance_,
                                    .layout = TinyLayout(shape_),
                                    .shape = shape_,
                                    .ops = decode_gpu_.ops.get(),
                                    .stream = &decode_gpu_.stream,
                                    .clock = RealClock(),
                                    .control = &service_,
                                    .data = {options_.listener.get()},
                                    .metrics = &decode_metrics_,
                                    .num_slots = options_.num_slots,
                                    .slot_bytes = options_.slot_bytes,
                                    .times = Times()})
                  .value();
  loop_ = std::thread([this] { DecodeLoop(); });
}

HandoffPair::~HandoffPair() {
  sender_.reset();
  stop_ = true;
  options_.decode_waker->Wake();
  loop_.join();
  service_.Shutdown();
  receiver_.reset();
  server_.Shutdown(std::chrono::seconds(2));
  decode_.caches.clear();
}

void HandoffPair::DecodeLoop() {
  while (!stop_) {
    if (!receiver_->MovesRows()) {
      options_.decode_waker->WaitUntil(RealClock()->Now() + milliseconds(5));
    }
    MutexLock lock(&mutex_);
    receiver_->Pump(decode_);
  }
}

double HandoffPair::HandOver(const SequenceCache& cache, int64_t tokens, int count,
                             std::vector<LeaseId>* leases) {
  leases->clear();
  {
    MutexLock lock(&mutex_);
    for (int i = 0; i < count; ++i) leases->push_back(decode_.Reserve(tokens));
  }
  std::vector<Handoff> handoffs(leases->size(), WorkerPair::MakeHandoff(tokens));
  const TimePoint start = RealClock()->Now();
  for (size_t i = 0; i < handoffs.size(); ++i) {
    const LeaseId lease = (*leases)[i];
    sender_->Begin(lease, instance_, "127.0.0.1:" + std::to_string(server_.port), &cache);
    sender_->GrowTo(lease, tokens);
    sender_->Finish(lease, std::move(handoffs[i]));
  }
  int adopted = 0;
  while (SecondsSince(start) < 10) {
    for (const HandoffOutcome& outcome : sender_->Pump()) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      if (!outcome.status.ok()) return -1;
      if (++adopted == count) return SecondsSince(start);
    }
    if (!sender_->MovesRows()) {
      options_.prefill_waker->WaitUntil(RealClock()->Now() + milliseconds(5));
    }
  }
  return -1;
}
void HandoffPair::Free(const std::vector<LeaseId>& leases) {
  MutexLock lock(&mutex_);
  for (LeaseId lease : leases) {
    decode_.Free(lease);
    decode_.adopted.erase(lease);
  }
}

std::string HandoffPair::Phases() {
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
      std::snprintf(one, sizeof(one), " %s %.3f", phase.c_str(),
                    1e3 * total.first / total.second);
      text += one;
    }
    text += metrics == &metrics_ ? " |" : " ms";
  }
  return text;
}

void MeasureHandoffs(HandoffPair& pair, int64_t most_tokens, double copy, const std::string& what) {
  auto cache = pair.prefill_pool().MakeSequenceFor(most_tokens).value();
  ASSERT_TRUE(cache->Reserve(most_tokens).ok());
  FillRuns(AllRuns(*cache, most_tokens), pair.prefill_gpu());
  std::vector<LeaseId> leases;
  ASSERT_GT(pair.HandOver(*cache, 300, 1, &leases), 0);  // the link comes up
  pair.Free(leases);
  for (const auto& [tokens, count] :
       {std::pair{int64_t{10'500}, 1}, {int64_t{10'500}, 4}, {int64_t{40'000}, 1}, {most_tokens, 1},
        {most_tokens, 3}}) {
    const std::vector<RowRun> runs = AllRuns(*cache, tokens);
    const double bytes = count * static_cast<double>(TotalBytes(CountKinds(runs)));
    double best = 1e9;
    for (int repeat = 0; repeat < 4; ++repeat) {
      const double seconds = pair.HandOver(*cache, tokens, count, &leases);
      ASSERT_GT(seconds, 0);
      best = std::min(best, seconds);
      if (repeat == 0) {
        const std::vector<RowRun> sent = PiecesOf(runs);
        const std::vector<RowRun> arrived =
            PiecesOf(AllRuns(pair.Arrived(leases.back()), tokens));
        ASSERT_EQ(sent.size(), arrived.size());
        for (size_t i = 0; i < sent.size(); i += 1 + sent.size() / 40) {
          ASSERT_EQ(BytesOf(sent[i]), BytesOf(arrived[i])) << i;
        }
      }
      pair.Free(leases);
    }
    std::printf("RESULT hand-off of %d x %lld tokens, %.0f MB, %s: %.3f ms, %.1f GB/s, "
                "%.3f of the copy\n",
                count, static_cast<long long>(tokens), bytes / 1e6, what.c_str(), 1e3 * best,
                bytes / best / 1e9, bytes / best / copy);
  }
  std::printf("  mean phases:%s\n", pair.Phases().c_str());
}

}  // namespace lodestone::nccl
