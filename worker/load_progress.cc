#include "worker/load_progress.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/logging.h"

namespace lodestone {
namespace {

constexpr std::chrono::seconds kLogInterval{2};
constexpr int kBarWidth = 30;

int64_t Percent(int64_t done, int64_t total) { return total > 0 ? 100 * done / total : 100; }

void Redraw(const std::string& what, int64_t done, int64_t total) {
  const int filled = static_cast<int>(kBarWidth * Percent(done, total) / 100);
  std::string bar(kBarWidth, ' ');
  bar.replace(0, static_cast<size_t>(filled), static_cast<size_t>(filled), '=');
  std::fprintf(stderr, "\rloading %s [%s] %lld%% of %s%s", what.c_str(), bar.c_str(),
               static_cast<long long>(Percent(done, total)),
               FormatBytes(static_cast<uint64_t>(total)).c_str(), done == total ? "\n" : "");
  std::fflush(stderr);
}

}  // namespace

LoadProgress ShowLoadProgress(std::string what) {
  if (isatty(STDERR_FILENO) != 0) {
    return [what = std::move(what)](int64_t done, int64_t total) { Redraw(what, done, total); };
  }
  const auto next = std::make_shared<TimePoint>(RealClock()->Now() + kLogInterval);
  return [what = std::move(what), next](int64_t done, int64_t total) {
    const TimePoint now = RealClock()->Now();
    if (done < total && now < *next) return;
    *next = now + kLogInterval;
    LOG(INFO) << "loading " << what << ": " << Percent(done, total) << "% of "
              << FormatBytes(static_cast<uint64_t>(total));
  };
}

}  // namespace lodestone
