#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op_params.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {

// The host buffers that rows are packed into or received in, allocated once, and where the ops that
// do so on `stream` leave the digests. A slot is either free or somebody's; who takes one gives it
// back. Worker loop only.
class StagingSlots {
 public:
  // The slots are memory of the host that the stream's device reaches, too. `stream` is not owned
  // and must outlive the slots. RESOURCE_EXHAUSTED if the system does not have the memory;
  // INVALID_ARGUMENT for sizes below 1.
  static absl::StatusOr<StagingSlots> Allocate(int num_slots, int64_t slot_bytes, Stream* stream);

  std::optional<int> Take();
  void GiveBack(int slot);
  std::span<std::byte> bytes(int slot) const {
    return {buffer_.data() + slot * slot_bytes_, static_cast<size_t>(slot_bytes_)};
  }

  // MoveRowsParams::digests for the next op, all 0; then what the ops have added since, once the
  // stream has passed them. Errors of Stream::Synchronize.
  uint64_t* ClearDigests();
  absl::Status ReadDigests(RowDigests& digests);

  int64_t slot_bytes() const { return slot_bytes_; }
  int num_slots() const { return num_slots_; }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  StagingSlots(Buffer buffer, int num_slots, int64_t slot_bytes);

  Buffer buffer_;
  Stream* stream_ = nullptr;
  Buffer digests_;       // where ops work
  Buffer host_digests_;  // a copy
  int num_slots_;
  int64_t slot_bytes_;
  std::vector<int> free_;  // taken from the back
  std::vector<bool> taken_;
};

}  // namespace lodestone
