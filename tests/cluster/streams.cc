#include "tests/cluster/streams.h"

#include "cli/verify.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kTimeout(180);

}  // namespace

Streams::Streams(const std::string& router_address, int num_streams,
                 std::vector<GenerateInput> inputs, std::vector<GenerateOutput> expected,
                 Errors errors)
    : client_(router_address),
      inputs_(std::move(inputs)),
      expected_(std::move(expected)),
      errors_(errors) {
  for (int i = 0; i < num_streams; ++i) threads_.emplace_back([this] { AskUntilEnd(); });
}

void Streams::End() {
  end_ = true;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Streams::AskUntilEnd() {
  while (!end_) Ask(next_++ % inputs_.size());
}

void Streams::Ask(size_t i) {
  std::vector<GeneratedToken> seen;
  steady_clock::time_point last = steady_clock::now();
  const auto answer = client_.Generate(inputs_[i], kTimeout, [&](const GeneratedToken& token) {
    NoteWait(std::exchange(last, steady_clock::now()));
    seen.push_back(token);
    ++tokens_;
    return true;
  });
  NoteWait(last);
  ++answers_;
  std::string problem;
  if (answer.ok()) {
    problem = DifferenceOf(answer->output, expected_[i]);
  } else {
    // What came before the error is right, too.
    ++errors_seen_;
    GenerateOutput prefix = expected_[i];
    prefix.tokens.resize(std::min(seen.size(), prefix.tokens.size()));
    problem = DifferenceOf({.tokens = seen, .finish = prefix.finish}, prefix);
    if (problem.empty() && errors_ == Errors::kForbidden) problem = answer.status().ToString();
    if (errors_ == Errors::kAllowed) std::this_thread::sleep_for(milliseconds(50));
  }
  if (problem.empty()) return;
  MutexLock lock(&mutex_);
  problems_.push_back("prompt of " + std::to_string(inputs_[i].tokens.size()) +
                      " tokens: " + problem);
}

void Streams::NoteWait(steady_clock::time_point since) {
  const int64_t waited =
      std::chrono::duration_cast<milliseconds>(steady_clock::now() - since).count();
  int64_t longest = longest_wait_ms_;
  while (waited > longest && !longest_wait_ms_.compare_exchange_weak(longest, waited)) {
  }
}

bool Streams::WaitForTokens(int64_t count) const {
  const int64_t wanted = tokens_ + count;
  const auto deadline = steady_clock::now() + kTimeout;
  while (tokens_ < wanted && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  return tokens_ >= wanted;
}

std::vector<std::string> Streams::problems() {
  MutexLock lock(&mutex_);
  return problems_;
}

}  // namespace lodestone
