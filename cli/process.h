#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace lodestone {

struct ProcessOptions {
  std::vector<std::string> argv;  // argv[0] is the path of the program
  std::string stdout_path;        // emptied at the start
  std::string stderr_path;        // appended to
};

// A child process of ours. It dies with this process, even if that is killed (Linux's parent-death
// signal, which belongs to the thread that started the child: start children from a thread that
// lives as long as they should). It has a process group of its own, so Ctrl-C reaches only us.
// The destructor kills what still runs.
class ChildProcess {
 public:
  // UNAVAILABLE naming the program and the system's reason.
  static absl::StatusOr<ChildProcess> Start(const ProcessOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // The exit of the process, once: "exit code 3", "signal 9"; nullopt while it runs.
  std::optional<std::string> PollExit();
  bool running() const { return running_; }
  void Signal(int number) const;
  // SIGKILL, and waits for the end.
  void Kill();

 private:
  explicit ChildProcess(pid_t pid) : pid_(pid), running_(true) {}

  pid_t pid_ = -1;
  bool running_ = false;
};

// The last `count` lines of a file, "" if there is none.
std::string LastLines(const std::string& path, int count);
// The folder of the running program.
std::string ProgramDirectory();

}  // namespace lodestone
