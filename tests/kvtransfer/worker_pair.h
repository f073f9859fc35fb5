#pragma once

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kvcache/cache_pool.h"
#include "kvtransfer/loopback.h"
#include "kvtransfer/receiver_impl.h"
#include "kvtransfer/sender_impl.h"
#include "tests/kvcache/shapes.h"

namespace lodestone {

// Every layer kind with few bytes per row, so that a test moves many caches.
inline CacheShape TinyShape() {
  CacheShape shape;
  shape.compress_ratios = {0, 4, 128};
  shape.head_dim = 32;
  shape.rope_dim = 16;
  shape.index_head_dim = 32;
  shape.window = 128;
  return shape;
}

inline std::unique_ptr<CachePool> MakePool(const CacheShape& shape, int64_t max_context = 2048,
                                           int64_t max_sequences = 8) {
  PlanInput input;
  input.shape = shape;
  input.memory_limit_bytes = int64_t{1} << 30;
  input.max_sequences = max_sequences;
  input.max_context = max_context;
  return CachePool::Create(PlanMemory(input).value(), FreedPages::kPoison).value();
}

inline LayoutDescriptor TinyLayout(const CacheShape& shape) {
  return DescribeLayout(shape, {.model_id = "model",
                                .tokenizer_fingerprint = "tokenizer",
                                .numerics = Numerics::kPlain,
                                .rope_theta = 10000,
                                .compress_rope_theta = 40000,
                                .rope_scaling = "yarn factor=16"});
}

inline std::vector<RowRun> AllRuns(const SequenceCache& cache, int64_t length) {
  std::vector<RowRun> runs = cache.AppendRuns(0, length);
  for (const RowRun& run : cache.FinalRuns(length)) runs.push_back(run);
  return runs;
}

template <typename Visit>
void ForEachPart(const std::vector<RowRun>& runs, Visit visit) {
  for (const RowRun& run : runs) {
    for (int64_t row = 0; row < run.num_rows; ++row) {
      for (int part = 0; part < run.num_parts; ++part) {
        visit(run.At(part, row),
              static_cast<size_t>(run.part_bytes[part]));
      }
    }
  }
}

inline void FillCache(const SequenceCache& cache, int64_t length, uint32_t seed) {
  std::mt19937 random(seed);
  ForEachPart(AllRuns(cache, length), [&](std::byte* at, size_t size) {
    for (size_t i = 0; i < size; ++i) at[i] = static_cast<std::byte>(random());
  });
}

// All rows of a cache of `length` tokens, in canonical order.
inline std::vector<std::byte> CacheBytes(const SequenceCache& cache, int64_t length) {
  std::vector<std::byte> bytes;
  ForEachPart(AllRuns(cache, length),
              [&](std::byte* at, size_t size) { bytes.insert(bytes.end(), at, at + size); });
  return bytes;
}

// The decode worker as far as the receiver is concerned.
class FakeDecode : public HandoffTarget {
 public:
  explicit FakeDecode(const CacheShape& shape, int64_t max_context = 2048,
                      int64_t max_sequences = 32)
      : pool(MakePool(shape, max_context, max_sequences)) {}

  LeaseId Reserve(int64_t tokens) {
    const LeaseId lease = RandomLeaseId();
    EXPECT_TRUE(pool->ledger().Reserve(lease, ReservationFor(std::max<int64_t>(tokens, 1))).ok());
    caches[lease] = pool->MakeSequence(lease).value();
    return lease;
  }
  void Free(LeaseId lease) {
    caches.erase(lease);
    (void)pool->ledger().Release(lease);
  }

  absl::StatusOr<SequenceCache*> CacheFor(LeaseId lease, int64_t num_tokens) override {
    const auto it = caches.find(lease);
    if (it == caches.end()) return absl::NotFoundError("no such lease");
    if (num_tokens > it->second->max_tokens()) {
      return absl::InvalidArgumentError("more tokens than were reserved");
    }
    if (absl::Status grown = it->second->Reserve(num_tokens); !grown.ok()) return grown;
    return it->second.get();
  }
  absl::Status Adopt(Handoff handoff) override {
    if (!adopt_status.ok()) return adopt_status;
    EXPECT_FALSE(adopted.contains(handoff.lease)) << "adopted twice";
    EXPECT_FALSE(abandoned.contains(handoff.lease)) << "adopted after it was abandoned";
    adopted[handoff.lease] = std::move(handoff);
    return absl::OkStatus();
  }
  void Abandon(LeaseId lease, const absl::Status& why) override {
    EXPECT_FALSE(abandoned.contains(lease)) << "abandoned twice";
    EXPECT_FALSE(adopted.contains(lease)) << "abandoned after it was adopted";
    EXPECT_FALSE(why.ok());
    abandoned[lease] = why;
    Free(lease);
  }
  bool Expects(LeaseId lease) const override {
    return caches.contains(lease) && !adopted.contains(lease);
  }
  void Named(std::span<const LeaseId> leases) override {
    named.insert(leases.begin(), leases.end());
  }

  std::unique_ptr<CachePool> pool;
  std::map<LeaseId, std::unique_ptr<SequenceCache>> caches;
  std::map<LeaseId, Handoff> adopted;
  std::map<LeaseId, absl::Status> abandoned;
  std::set<LeaseId> named;
  absl::Status adopt_status;
};

// One or more prefill and decode workers in one process under one FakeClock.
class WorkerPair {
 public:
  struct Options {
    CacheShape shape = TinyShape();
    int64_t prefill_slot_bytes = 8192;
    int64_t decode_slot_bytes = 8192;
    int num_slots = 4;
    LinkTimes times = {};
    LayoutDescriptor decode_layout = {};  // empty: as prefill
    int64_t max_context = 2048;
    int64_t max_sequences = 32;
    bool early = false;  // the transport holds bytes that no grant is here for
  };
  WorkerPair() : WorkerPair(Options()) {}
  explicit WorkerPair(Options o)
      : options(std::move(o)),
        network(&clock, options.times.dead_after),
        ops(MakeReferenceOps()),
        prefill_pool(MakePool(options.shape, options.max_context, options.max_sequences)),
        decode(options.shape, options.max_context, options.max_sequences) {
    network.takes_early_bytes = options.early;
    sender = MakeTestSender();
    receiver = MakeTestReceiver();
  }

  std::unique_ptr<SlotSender> MakeTestSender() {
    return SlotSender::Create({.instance = InstanceId::Random(),
                               .layout = TinyLayout(options.shape),
                               .ops = ops.get(),
                               .stream = &stream,
                               .clock = &clock,
                               .control = network.dialer(),
                               .data = {network.data_dialer()},
                               .metrics = &prefill_metrics,
                               .num_slots = options.num_slots,
                               .slot_bytes = options.prefill_slot_bytes,
                               .times = options.times})
        .value();
  }
  std::unique_ptr<SlotReceiver> MakeTestReceiver() {
    const auto layout =
        options.decode_layout.empty() ? TinyLayout(options.shape) : options.decode_layout;
    return SlotReceiver::Create({.instance = decode_instance,
                                 .layout = layout,
                                 .shape = options.shape,
                                 .ops = ops.get(),
                                 .stream = &stream,
                                 .clock = &clock,
                                 .control = network.acceptor(kAddress),
                                 .data = {network.listener(kAddress)},
                                 .metrics = &decode_metrics,
                                 .num_slots = options.num_slots,
                                 .slot_bytes = options.decode_slot_bytes,
                                 .times = options.times})
        .value();
  }

  // A prompt of `length` random rows on the prefill worker.
  std::unique_ptr<SequenceCache> Prompt(int64_t length, uint32_t seed) {
    auto cache = prefill_pool->MakeSequenceFor(std::max<int64_t>(length, 1)).value();
    EXPECT_TRUE(cache->Reserve(length).ok());
    FillCache(*cache, length, seed);
    return cache;
  }
  LeaseId Begin(const SequenceCache* cache, int64_t reserve_tokens) {
    const LeaseId lease = decode.Reserve(reserve_tokens);
    sender->Begin(lease, decode_instance, kAddress, cache);
    return lease;
  }
  static Handoff MakeHandoff(int64_t length) {
    Handoff handoff;
    handoff.request_id = "request";
    for (int64_t i = 0; i < length; ++i) handoff.tokens.push_back(static_cast<int32_t>(i));
    handoff.first_token = {.id = 7, .index = 0, .logprob = 0, .top_logprobs = {}};
    return handoff;
  }

  void Step() {
    if (pump_sender) {
      for (HandoffOutcome& outcome : sender->Pump()) {
        EXPECT_FALSE(outcomes.contains(outcome.lease)) << "two outcomes";
        outcomes[outcome.lease] = std::move(outcome.status);
      }
    }
    if (pump_receiver) receiver->Pump(decode);
    clock.Advance(std::chrono::milliseconds(5));
  }
  // False if it has not come true within `limit` of the clock.
  bool RunUntil(const std::function<bool()>& done,
                std::chrono::seconds limit = std::chrono::seconds(60)) {
    const TimePoint until = clock.Now() + limit;
    while (!done()) {
      if (clock.Now() >= until) return false;
      Step();
    }
    return true;
  }
  bool RunUntilOutcome(LeaseId lease) {
    return RunUntil([&] { return outcomes.contains(lease); });
  }
  // Every slot is free and nobody remembers a request.
  bool Idle() const {
    return sender->num_free_slots() == options.num_slots &&
           receiver->num_free_slots() == options.num_slots && sender->num_leases() == 0 &&
           receiver->num_incoming() == 0;
  }
  bool RunUntilIdle() {
    return RunUntil([&] { return Idle(); });
  }

  static constexpr char kAddress[] = "decode:1";
  Options options;
  FakeClock clock;
  LoopbackNetwork network;
  ThreadPool threads{1};
  Stream stream{&threads};
  Metrics prefill_metrics{kRolePrefill};
  Metrics decode_metrics{kRoleDecode};
  std::unique_ptr<Ops> ops;
  InstanceId decode_instance = InstanceId::Random();
  std::unique_ptr<CachePool> prefill_pool;
  FakeDecode decode;
  std::unique_ptr<SlotSender> sender;
  std::unique_ptr<SlotReceiver> receiver;
  std::map<LeaseId, absl::Status> outcomes;
  bool pump_sender = true;
  bool pump_receiver = true;
};

}  // namespace lodestone
