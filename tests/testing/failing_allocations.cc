#include "tests/testing/failing_allocations.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/logging.h"

namespace lodestone {
namespace {

struct State {
  bool armed = false;
  int64_t count = 0;
  int64_t fail_at = 0;
};
thread_local State t_state;

std::atomic<int64_t> g_large_bytes = INT64_MAX;
std::atomic<int64_t> g_large_failures = 0;

bool IsTooLarge(std::size_t size) {
  if (static_cast<int64_t>(size) < g_large_bytes) return false;
  ++g_large_failures;
  return true;
}

// The thread sanitizer calls mmap before it is ready to watch anybody.
__attribute__((no_sanitize("thread"))) bool FailsNow() {
  return t_state.armed && t_state.count++ == t_state.fail_at;
}

}  // namespace

FailingAllocation::FailingAllocation(int64_t fail_at) {
  CHECK(!t_state.armed) << "a FailingAllocation lives already";
  t_state = {.armed = true, .count = 0, .fail_at = fail_at};
}

FailingAllocation::~FailingAllocation() { t_state.armed = false; }

int64_t FailingAllocation::count() { return t_state.count; }

FailingLargeAllocations::FailingLargeAllocations(int64_t bytes) {
  CHECK(g_large_bytes == INT64_MAX) << "a FailingLargeAllocations lives already";
  g_large_failures = 0;
  g_large_bytes = bytes;
}

FailingLargeAllocations::~FailingLargeAllocations() { g_large_bytes = INT64_MAX; }

int64_t FailingLargeAllocations::num_failures() const { return g_large_failures; }

UnfailingAllocations::UnfailingAllocations()
    : was_armed_(std::exchange(t_state.armed, false)) {}

UnfailingAllocations::~UnfailingAllocations() { t_state.armed = was_armed_; }

}  // namespace lodestone

namespace {

void* Allocate(std::size_t size) {
  if (lodestone::IsTooLarge(size) || lodestone::FailsNow()) return nullptr;
  return std::malloc(size == 0 ? 1 : size);
}
void* AllocateAligned(std::size_t size, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  const std::size_t whole = (size + align - 1) / align * align;
  return lodestone::FailsNow() ? nullptr : std::aligned_alloc(align, whole == 0 ? align : whole);
}
void* OrThrow(void* bytes) {
  if (bytes == nullptr) throw std::bad_alloc();
  return bytes;
}

}  // namespace

void* operator new(std::size_t size) { return OrThrow(Allocate(size)); }
void* operator new[](std::size_t size) { return OrThrow(Allocate(size)); }
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return Allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return OrThrow(AllocateAligned(size, alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return OrThrow(AllocateAligned(size, alignment));
}
void operator delete(void* bytes) noexcept { std::free(bytes); }
void operator delete[](void* bytes) noexcept { std::free(bytes); }
void operator delete(void* bytes, std::size_t) noexcept { std::free(bytes); }
void operator delete[](void* bytes, std::size_t) noexcept { std::free(bytes); }
void operator delete(void* bytes, std::align_val_t) noexcept { std::free(bytes); }
void operator delete[](void* bytes, std::align_val_t) noexcept { std::free(bytes); }
void operator delete(void* bytes, std::size_t, std::align_val_t) noexcept { std::free(bytes); }
void operator delete[](void* bytes, std::size_t, std::align_val_t) noexcept { std::free(bytes); }

extern "C" __attribute__((no_sanitize("thread"))) void* mmap(void* address, std::size_t length,
                                                               int protection, int flags, int fd,
                                                               off_t offset) noexcept {
  if (lodestone::FailsNow()) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, length, protection, flags, fd, offset));
}
