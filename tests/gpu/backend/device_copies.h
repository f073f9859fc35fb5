#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/op_params.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace lodestone {

inline constexpr int64_t kCopyAlignment = 256;  // bytes
int64_t RoundUpToCopyAlignment(int64_t num_bytes);

// The memory that one op works on: ranges of host memory, merged where they overlap (planar
// caches), each with a copy on the device. Used once: Take the params, Upload, run the op, Finish.
//
// All copies lie in one arena, poison (NaN) between them, which must be intact in the end. With
// LODESTONE_EXACT_BUFFERS set every range has an allocation of its size alone instead, so that
// compute-sanitizer sees a step beyond it.
class DeviceCopies {
 public:
  // `stream` and `arena` outlive this; the arena is memory of the stream's device.
  DeviceCopies(Stream& stream, Buffer& arena) : stream_(stream), arena_(arena) {}

  // The views of `p`, which outlives this, will point to copies; empty ones and those in device
  // memory stay.
  void Take(EmbedTokensParams& p);
  void Take(HcPreParams& p);
  void Take(HcPostParams& p);
  void Take(HcBoundaryParams& p);
  void Take(HcHeadParams& p);
  void Take(LinearParams& p);
  void Take(RmsNormParams& p);
  void Take(QueryNormRopeParams& p);
  void Take(WindowLatentParams& p);
  void Take(StoreWindowParams& p);
  void Take(CompressKvParams& p);
  void Take(IndexQueryParams& p);
  void Take(AttentionRowsParams& p);
  void Take(QueryRowsParams& p);
  void Take(IndexTopKParams& p);
  void Take(SparseAttentionParams& p);
  void Take(MoeRouteParams& p);

  // The same of one view, by what the op does with it.
  void Read(TensorView& view) { AddView(view, false); }
  void Read(PackedWeight& weight) { AddView(weight.data, false); }
  void Read(BatchIndex& batch);
  void Write(TensorView& view) { AddView(view, true); }
  void Write(RowStore& store);
  // `*pointer` will point to the copy of these bytes.
  void Add(std::byte** pointer, int64_t num_bytes, bool written);

  // After all of the above. Host memory keeps its distances within a range.
  void Upload();
  // After the op: copies back what it wrote; the test fails if it wrote outside.
  void Finish();

 private:
  struct Range {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
    bool written = false;
    std::byte* device = nullptr;
  };

  void AddView(TensorView& view, bool written);
  void PlaceRanges();
  std::byte* DeviceAddress(const std::byte* host) const;
  void CopyNow(void* to, const void* from, int64_t num_bytes);
  void Synchronize();

  Stream& stream_;
  Buffer& arena_;
  std::vector<Range> ranges_, merged_;
  std::vector<Buffer> exact_;
  std::vector<std::byte**> pointers_;
  std::vector<TensorView*> views_;
};

}  // namespace lodestone
