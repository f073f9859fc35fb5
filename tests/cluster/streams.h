#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "cli/generate_client.h"

namespace lodestone {

// Clients that ask one question after the other until they are told to end, and check every token.
class Streams {
 public:
  // Whether an answer may end in an error: while nobody is there who could give one.
  enum class Errors { kForbidden, kAllowed };

  Streams(const std::string& router_address, int num_streams, std::vector<GenerateInput> inputs,
          std::vector<GenerateOutput> expected, Errors errors = Errors::kForbidden);
  ~Streams() { End(); }

  // No further questions; those that were asked go on.
  void StopAsking() { end_ = true; }
  // Every stream comes to its own end first. Idempotent.
  void End();

  int64_t tokens() const { return tokens_; }
  int64_t answers() const { return answers_; }
  int64_t errors() const { return errors_seen_; }
  // The longest time that a stream waited for its next token or its end.
  std::chrono::milliseconds longest_wait() const {
    return std::chrono::milliseconds(longest_wait_ms_);
  }
  // Until so many tokens have come since now; false if they do not come.
  bool WaitForTokens(int64_t count) const;
  // Wrong answers, and errors unless they are allowed.
  std::vector<std::string> problems();

 private:
  void AskUntilEnd();
  void Ask(size_t i);
  void NoteWait(std::chrono::steady_clock::time_point since);

  const GenerateClient client_;
  const std::vector<GenerateInput> inputs_;
  const std::vector<GenerateOutput> expected_;
  const Errors errors_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> tokens_{0}, answers_{0}, errors_seen_{0}, longest_wait_ms_{0};
  std::atomic<bool> end_{false};
  Mutex mutex_;
  std::vector<std::string> problems_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace lodestone
