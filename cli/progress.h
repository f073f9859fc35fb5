#pragma once

#include <chrono>
#include <string_view>

#include "base/mutex.h"

namespace lodestone {

// What a command is doing, on stderr: one line that is redrawn on a terminal, elsewhere a line at
// most every 5 s. Thread-safe.
class Progress {
 public:
  Progress();
  ~Progress() { Clear(); }

  // The state of something that is going on.
  void Update(std::string_view text);
  // A line that stays.
  void Note(std::string_view text);
  // Takes the redrawn line away, before other output.
  void Clear();

 private:
  void ClearLocked() REQUIRES(mutex_);

  const bool terminal_;
  Mutex mutex_;
  bool drawn_ GUARDED_BY(mutex_) = false;
  std::chrono::steady_clock::time_point last_ GUARDED_BY(mutex_);
};

}  // namespace lodestone
