#include "base/shutdown.h"

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>
#include <thread>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The signal state belongs to the whole process, so each test runs in a child that exits.
template <typename Body>
void ExpectExit(int code, Body body) {
  EXPECT_EXIT(
      {
        body(ShutdownSignal::Install());
        _exit(0);
      },
      testing::ExitedWithCode(code), "");
}

TEST(ShutdownDeathTest, WaitEndsAtItsDeadlineWithoutASignal) {
  ExpectExit(0, [](ShutdownSignal& shutdown) {
    if (shutdown.Requested() || shutdown.WaitFor(milliseconds(10))) _exit(1);
  });
}

TEST(ShutdownDeathTest, FirstSignalIsSeenByWaitPollAndFd) {
  for (int signal : {SIGTERM, SIGINT}) {
    ExpectExit(0, [signal](ShutdownSignal& shutdown) {
      raise(signal);
      pollfd entry = {.fd = shutdown.fd(), .events = POLLIN, .revents = 0};
      if (!shutdown.Requested() || !shutdown.WaitFor(seconds(0)) || poll(&entry, 1, 0) != 1) {
        _exit(1);
      }
    });
  }
}

// Until a process sleeps or is gone. A signal that comes shortly before is seen as well, but the
// thread sanitizer keeps it until the sleep is over.
void AwaitSleep(pid_t process) {
  for (std::string state = "R"; state != "S" && !state.empty();) {
    std::this_thread::sleep_for(milliseconds(1));
    std::string id, name;
    state.clear();
    std::ifstream("/proc/" + std::to_string(process) + "/stat") >> id >> name >> state;
  }
}

TEST(ShutdownDeathTest, SignalWakesAWaiter) {
  ExpectExit(0, [](ShutdownSignal& shutdown) {
    const pid_t parent = getpid();
    if (fork() == 0) {
      AwaitSleep(parent);
      kill(parent, SIGTERM);
      _exit(0);
    }
    if (!shutdown.WaitFor(seconds(30))) _exit(1);
  });
}

TEST(ShutdownDeathTest, AnInterruptAfterAnySignalEndsTheProcessWith130) {
  for (int first : {SIGTERM, SIGINT}) {
    ExpectExit(130, [first](ShutdownSignal&) {
      raise(first);
      raise(SIGINT);
    });
  }
}

TEST(ShutdownDeathTest, ARepeatedSigtermDoesNotCutADrainShort) {
  for (int first : {SIGTERM, SIGINT}) {
    ExpectExit(0, [first](ShutdownSignal& shutdown) {
      raise(first);
      raise(SIGTERM);
      raise(SIGTERM);
      if (!shutdown.Requested()) _exit(1);
    });
  }
}

TEST(ShutdownDeathTest, RequestCountsAsTheFirstSignal) {
  ExpectExit(130, [](ShutdownSignal& shutdown) {
    shutdown.Request();
    shutdown.Request();
    if (!shutdown.WaitFor(seconds(0))) _exit(1);
    raise(SIGINT);
  });
}

TEST(ShutdownDeathTest, BrokenPipeIsAnErrorAndNotADeath) {
  ExpectExit(0, [](ShutdownSignal&) {
    int ends[2];
    if (pipe(ends) != 0) _exit(1);
    close(ends[0]);
    if (write(ends[1], "x", 1) != -1) _exit(1);
  });
}

}  // namespace
}  // namespace lodestone
