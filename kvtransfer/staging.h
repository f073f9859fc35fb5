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

// The buffers that rows are packed into or received in, allocated once, and where the ops that do
// so leave the digests. A slot is either free or somebody's; who takes one gives it back. Worker
// loop only.
//
// A move (pack or scatter) of a slot: BeginMove, the op on stream(), EndMove; later Moved says
// whether it is over. Moves run in order, beside the engine's stream: one begins after what the
// engine has queued by then, and AwaitMoves makes the engine wait for those that are under way. On
// the host everything is over at once.
class StagingSlots {
 public:
  // `place` is what the transport sends from: memory of the stream's device, or of the host if the
  // device reaches it. `engine` is not owned and must outlive the slots. RESOURCE_EXHAUSTED if the
  // system does not have the memory; INVALID_ARGUMENT for sizes below 1.
  static absl::StatusOr<StagingSlots> Allocate(int num_slots, int64_t slot_bytes, MemoryPlace place,
                                               Stream* engine);

  std::optional<int> Take();
  void GiveBack(int slot);
  std::span<std::byte> bytes(int slot) const {
    return {buffer_.data() + slot * slot_bytes_, static_cast<size_t>(slot_bytes_)};
  }

  Stream& stream() { return moves_; }
  // MoveRowsParams::digests for the op that follows, all 0 when it starts.
  uint64_t* BeginMove(int slot);
  void EndMove(int slot);
  // Whether the slot's last move is over; then its digests are in `digests`. An error is the
  // device's, which cannot be used any more.
  absl::StatusOr<bool> Moved(int slot, RowDigests& digests) const;
  // The engine's stream goes on after the moves that have begun.
  void AwaitMoves();

  int64_t slot_bytes() const { return slot_bytes_; }
  int num_slots() const { return num_slots_; }
  int num_free() const { return static_cast<int>(free_.size()); }

 private:
  StagingSlots(int num_slots, int64_t slot_bytes, Stream* engine, Stream moves);
  uint64_t* digests(const Buffer& of_all, int slot) const;

  int num_slots_;
  int64_t slot_bytes_;
  Stream* engine_;
  Stream moves_;
  Buffer buffer_;
  Buffer digests_;       // RowDigests of every slot, where ops work; 0 between moves
  Buffer host_digests_;  // a copy
  Event engine_place_;
  std::vector<Event> moved_;  // by slot
  Event last_move_;
  std::vector<int> free_;  // taken from the back
  std::vector<bool> taken_;
};

}  // namespace lodestone
