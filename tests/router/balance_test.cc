#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "router/policy.h"

// A cluster of numbers: requests of very different sizes are placed, prefill workers work their
// queues off, decode workers hold memory for a while. No worker may get much more than its share.
namespace lodestone {
namespace {

constexpr int kWorkers = 4;
constexpr int kRequests = 4000;
constexpr int64_t kTokensPerTick = 1500;  // of one prefill worker
constexpr int64_t kLargest = 10'000;

std::shared_ptr<Worker> MakeWorker(WorkerRole role, int number) {
  auto worker = std::make_shared<Worker>();
  worker->hello.role = role;
  worker->hello.instance_id = (role == WorkerRole::kPrefill ? "p" : "d") + std::to_string(number);
  worker->hello.cache_capacity_bytes = 100'000'000;
  worker->hello.max_context_tokens = 1 << 20;
  worker->hello.bytes_per_sequence = 1000;
  worker->hello.bytes_per_page = 256;
  worker->hello.page_tokens = 256;
  worker->load.state = WorkerState::kReady;
  worker->load.free_bytes = worker->hello.cache_capacity_bytes;
  worker->load.free_sequences = 1 << 20;
  return worker;
}

// Mostly short prompts, some very long ones.
int64_t RandomPrompt(std::mt19937& random) {
  if (random() % 10 == 0) return 4000 + static_cast<int64_t>(random() % (kLargest - 4000));
  return 1 + static_cast<int64_t>(random() % 600);
}

struct Simulation {
  Simulation() {
    for (int i = 0; i < kWorkers; ++i) workers.push_back(MakeWorker(WorkerRole::kPrefill, i));
    for (int i = 0; i < kWorkers; ++i) workers.push_back(MakeWorker(WorkerRole::kDecode, i));
    for (int p = 0; p < kWorkers; ++p) {
      for (int d = 0; d < kWorkers; ++d) {
        workers[static_cast<size_t>(p)]->load.linked_instance_ids.push_back("d" +
                                                                            std::to_string(d));
      }
    }
  }
  Worker& prefill(int i) { return *workers[static_cast<size_t>(i)]; }

  void Arrive(std::mt19937& random) {
    const int64_t prompt = RandomPrompt(random);
    const PlacementOr place =
        Place({.prompt_tokens = prompt, .total_tokens = prompt + 200}, workers, {});
    const Placement& pair = std::get<Placement>(place);
    pair.prefill->inflight_tokens += prompt;
    placed[pair.prefill->hello.instance_id] += prompt;
    const int64_t bytes = 1000 + (prompt + 455) / 256 * 256;
    pair.decode->load.free_bytes -= bytes;
    placed[pair.decode->hello.instance_id] += bytes;
    held.push_back({pair.decode.get(), bytes});
  }
  void Tick() {
    for (int i = 0; i < kWorkers; ++i) {
      prefill(i).inflight_tokens =
          std::max<int64_t>(0, prefill(i).inflight_tokens - kTokensPerTick);
    }
    while (held.size() > 60) {
      held.front().first->load.free_bytes += held.front().second;
      held.pop_front();
    }
  }
  // The most that one worker of a role got, relative to the mean.
  double Share(const std::string& role) const {
    int64_t most = 0, sum = 0;
    for (const auto& [id, amount] : placed) {
      if (id.rfind(role, 0) != 0) continue;
      most = std::max(most, amount);
      sum += amount;
    }
    return static_cast<double>(most) * kWorkers / static_cast<double>(sum);
  }

  WorkerList workers;
  std::map<std::string, int64_t> placed;  // tokens of prefill, bytes of decode workers
  std::deque<std::pair<Worker*, int64_t>> held;
};

TEST(BalanceTest, NoWorkerGetsMuchMoreThanItsShare) {
  std::mt19937 random(1);
  Simulation cluster;
  for (int request = 0; request < kRequests; ++request) {
    cluster.Arrive(random);
    // Five requests in a tick carry about as much as four workers compute in it.
    if (request % 5 == 4) cluster.Tick();
    std::vector<int64_t> queues;
    for (int i = 0; i < kWorkers; ++i) queues.push_back(cluster.prefill(i).inflight_tokens);
    const auto [shortest, longest] = std::minmax_element(queues.begin(), queues.end());
    ASSERT_LE(*longest - *shortest, kLargest) << "after request " << request;
  }
  EXPECT_LE(cluster.Share("p"), 1.1);
  EXPECT_LE(cluster.Share("d"), 1.1);
}

// Requests that come while nobody's load is known yet do not all go to one worker: the router
// counts what it has placed itself.
TEST(BalanceTest, ABurstIsSpreadBeforeTheNextReport) {
  std::mt19937 random(2);
  Simulation cluster;
  for (int request = 0; request < 200; ++request) cluster.Arrive(random);
  EXPECT_LE(cluster.Share("p"), 1.5);
  EXPECT_LE(cluster.Share("d"), 1.5);
}

}  // namespace
}  // namespace lodestone
