#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/op_params.h"

// Addresses of activation rows and cache rows.
namespace lodestone::cpu {

inline bool IsBf16(const TensorView& view) { return view.dtype == DType::kBf16; }

// Row `i` of the first axis, or row `j` of the second axis within it, whatever the element type.
inline std::byte* RowPointer(const TensorView& view, int64_t i, int64_t j = 0) {
  const int64_t offset = i * view.strides[0] + (view.rank > 2 ? j * view.strides[1] : 0);
  return view.as<std::byte>() + offset * BytesPerElement(view.dtype);
}

struct StoredRow {
  std::byte* payload;
  std::byte* scale;  // null if the format has none
};

inline StoredRow RowAt(const RowStore& store, int64_t block, int64_t row) {
  const TensorView& p = store.payload;
  const TensorView& s = store.scale;
  return {p.as<std::byte>() + block * p.strides[0] + row * p.strides[1],
          s.empty() ? nullptr : s.as<std::byte>() + block * s.strides[0] + row * s.strides[1]};
}

// Entry `entry` of sequence `seq`, found through its block table.
inline StoredRow EntryAt(const RowStore& store, const BatchIndex& batch, int64_t seq, int64_t entry,
                         int64_t ratio) {
  const int64_t per_page = kPageTokens / ratio;
  return RowAt(store, batch.block_table.row<int32_t>(seq)[entry / per_page], entry % per_page);
}

// Whether a row of `format` holds just what an activation row holds.
inline bool SameBytes(KvFormat format, bool bf16) {
  return format == (bf16 ? KvFormat::kBf16 : KvFormat::kF32);
}

}  // namespace lodestone::cpu
