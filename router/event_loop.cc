#include "router/event_loop.h"

#include "base/clock.h"

namespace lodestone {
namespace {

constexpr std::chrono::milliseconds kSpinFor{1};
constexpr int kProcessorsToSpin = 8;
constexpr int kPauses = 16;

}  // namespace

std::chrono::nanoseconds SpinTime(int processors) {
  return processors >= kProcessorsToSpin ? kSpinFor : std::chrono::milliseconds(0);
}

void RunEventLoop(boost::asio::io_context& loop, std::chrono::nanoseconds spin_for) {
  TimePoint sleep_at{};
  while (!loop.stopped()) {
    const bool spins = spin_for.count() > 0 && RealClock()->Now() < sleep_at;
    if ((spins ? loop.poll() : loop.run_one()) > 0) {
      sleep_at = RealClock()->Now() + spin_for;
    } else if (spins) {
      for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
    }
  }
}

}  // namespace lodestone
