#include "cli/progress.h"

#include <unistd.h>

#include <cstdio>

namespace lodestone {
namespace {

constexpr std::chrono::seconds kLineEvery(5);

}  // namespace

Progress::Progress() : terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::Update(std::string_view text) {
  MutexLock lock(&mutex_);
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[2K%.*s", static_cast<int>(text.size()), text.data());
    drawn_ = true;
    return;
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < kLineEvery) return;
  last_ = now;
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

void Progress::Note(std::string_view text) {
  MutexLock lock(&mutex_);
  ClearLocked();
  std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
}

void Progress::Clear() {
  MutexLock lock(&mutex_);
  ClearLocked();
}

void Progress::ClearLocked() {
  if (drawn_) std::fprintf(stderr, "\r\x1b[2K");
  drawn_ = false;
}

}  // namespace lodestone
