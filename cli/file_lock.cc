#include "cli/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

namespace lodestone {

absl::StatusOr<FileLock> FileLock::Take(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::UnavailableError("cannot open " + path + ": " + std::strerror(errno));
  }
  FileLock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    std::string owner;
    std::getline(std::ifstream(path), owner);
    return absl::FailedPreconditionError(path + " is held by process " +
                                         (owner.empty() ? "(unknown)" : owner) +
                                         ": another cluster runs in this folder");
  }
  const std::string pid = std::to_string(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 || write(fd, pid.data(), pid.size()) != std::ssize(pid)) {
    return absl::UnavailableError("cannot write " + path + ": " + std::strerror(errno));
  }
  return lock;
}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace lodestone
