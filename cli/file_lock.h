#pragma once

#include <string>
#include <utility>

#include <absl/status/statusor.h>

namespace lodestone {

// A file that one process at a time holds, with its pid in it. The system gives it up when the
// process ends, however it ends. The file stays.
class FileLock {
 public:
  // FAILED_PRECONDITION with the path and the owner's pid if another holds it; UNAVAILABLE if it
  // cannot be written.
  static absl::StatusOr<FileLock> Take(const std::string& path);
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace lodestone
