#include "cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <utility>

namespace lodestone {
namespace {

// What must be opened before the fork, so that the child does only async-signal-safe calls.
struct ChildFiles {
  int out = -1;
  int err = -1;
  int null = -1;
  ~ChildFiles() {
    for (int fd : {out, err, null}) {
      if (fd >= 0) close(fd);
    }
  }
};

absl::Status OpenFiles(const ProcessOptions& options, ChildFiles* files) {
  files->null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  files->out = open(options.stdout_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  files->err = open(options.stderr_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (files->null < 0 || files->out < 0 || files->err < 0) {
    return absl::UnavailableError("cannot open the output files of " + options.argv[0] + " (" +
                                  options.stdout_path + ", " + options.stderr_path +
                                  "): " + std::strerror(errno));
  }
  return absl::OkStatus();
}

// In the child, after fork: never returns.
[[noreturn]] void Become(char* const* argv, const ChildFiles& files, pid_t parent, int report) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the line above
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(files.null, STDIN_FILENO);
  dup2(files.out, STDOUT_FILENO);
  dup2(files.err, STDERR_FILENO);
  execv(argv[0], argv);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(report, &error, sizeof(error));
  _exit(127);
}

}  // namespace

absl::StatusOr<ChildProcess> ChildProcess::Start(const ProcessOptions& options) {
  ChildFiles files;
  if (absl::Status status = OpenFiles(options, &files); !status.ok()) return status;
  std::vector<char*> argv;
  for (const std::string& arg : options.argv) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);

  int report[2];  // closed by a successful exec, else carries its errno
  if (pipe2(report, O_CLOEXEC) != 0) {
    return absl::UnavailableError(std::string("pipe: ") + std::strerror(errno));
  }
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) Become(argv.data(), files, parent, report[1]);
  close(report[1]);
  int error = pid < 0 ? errno : 0;
  if (pid > 0 && read(report[0], &error, sizeof(error)) != sizeof(error)) error = 0;
  close(report[0]);
  if (error != 0) {
    if (pid > 0) waitpid(pid, nullptr, 0);
    return absl::UnavailableError("cannot start " + options.argv[0] + ": " + std::strerror(error));
  }
  return ChildProcess(pid);
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(other.pid_), running_(std::exchange(other.running_, false)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    Kill();
    pid_ = other.pid_;
    running_ = std::exchange(other.running_, false);
  }
  return *this;
}

ChildProcess::~ChildProcess() { Kill(); }

std::optional<std::string> ChildProcess::PollExit() {
  if (!running_) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  running_ = false;
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

void ChildProcess::Signal(int number) const {
  if (running_) kill(pid_, number);
}

void ChildProcess::Kill() {
  if (!running_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  running_ = false;
}

std::string LastLines(const std::string& path, int count) {
  std::ifstream stream(path);
  std::deque<std::string> lines;
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(std::move(line));
    if (std::ssize(lines) > count) lines.pop_front();
  }
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

std::string ProgramDirectory() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "." : self.parent_path().string();
}

}  // namespace lodestone
