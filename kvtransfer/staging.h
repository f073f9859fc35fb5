#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/memory.h"

namespace lodestone {

// The host buffers that rows are packed into or received in, allocated once. A slot is either free or
// somebody's; who takes one gives it back. Worker loop only.
class StagingSlots {
 public:
  // RESOURCE_EXHAUSTED if the system does not have the memory; INVALID_ARGUMENT for sizes below 1.
  static absl::StatusOr<StagingSlots> Allocate(int num_slots, int64_t slot_bytes);

  std::optional<int> Take();
  void GiveBack(int slot);
  std::span<std::byte> bytes(int slot) const {
    return {buffer_.data() + slot * slot_bytes_, static_cast<size_t>(slot_bytes_)};
  }

  int64_t slot_bytes() const { return slot_bytes_; }
  int num_slots() const { return num_slots_; }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  StagingSlots(Buffer buffer, int num_slots, int64_t slot_bytes);

  Buffer buffer_;
  int num_slots_;
  int64_t slot_bytes_;
  std::vector<int> free_;  // taken from the back
  std::vector<bool> taken_;
};

}  // namespace lodestone
