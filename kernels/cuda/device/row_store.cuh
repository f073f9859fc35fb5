#pragma once

#include <cstdint>

#include "kernels/op_params.h"

// What a kernel that writes cache rows is given: the tokens of the batch, and the rows, found by
// block and row.
namespace lodestone::cuda {

// BatchIndex without its block table.
struct BatchPointers {
  const int32_t* positions;   // [T]
  const int32_t* token_seq;   // [T]
  const int32_t* seq_first;   // [B]
  const int32_t* seq_tokens;  // [B]
  const int32_t* seq_slot;    // [B]
};

inline BatchPointers PointersOf(const BatchIndex& batch) {
  return {.positions = batch.positions.as<int32_t>(),
          .token_seq = batch.token_seq.as<int32_t>(),
          .seq_first = batch.seq_first.as<int32_t>(),
          .seq_tokens = batch.seq_tokens.as<int32_t>(),
          .seq_slot = batch.seq_slot.as<int32_t>()};
}

struct WritableRows {
  uint8_t* payload;
  uint8_t* scale;                                    // null if the format has none
  int64_t payload_block_stride, payload_row_stride;  // bytes
  int64_t scale_block_stride, scale_row_stride;

  __device__ uint8_t* Payload(int64_t block, int64_t row) const {
    return payload + block * payload_block_stride + row * payload_row_stride;
  }
  __device__ uint8_t* Scale(int64_t block, int64_t row) const {
    return scale + block * scale_block_stride + row * scale_row_stride;
  }
};

inline WritableRows WritableRowsOf(const RowStore& store) {
  return {.payload = store.payload.as<uint8_t>(),
          .scale = store.scale.as<uint8_t>(),
          .payload_block_stride = store.payload.strides[0],
          .payload_row_stride = store.payload.strides[1],
          .scale_block_stride = store.scale.strides[0],
          .scale_row_stride = store.scale.strides[1]};
}

}  // namespace lodestone::cuda
