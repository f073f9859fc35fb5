#include "tests/gpu/backend/device_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "base/logging.h"
#include "tests/testing/tensor_extent.h"

namespace lodestone {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int kPoison = 0xff;

bool ExactBuffers() {
  static const bool exact = std::getenv("LODESTONE_EXACT_BUFFERS") != nullptr;
  return exact;
}

}  // namespace

int64_t RoundUpToCopyAlignment(int64_t num_bytes) {
  return (num_bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment;
}

void DeviceCopies::Take(EmbedTokensParams& p) {
  Read(p.ids);
  Read(p.table);
  Write(p.streams);
}

void DeviceCopies::Take(HcPreParams& p) {
  for (TensorView* view : {&p.streams, &p.base, &p.scale, &p.norm_weight}) Read(*view);
  Read(p.fn);
  for (TensorView* view : {&p.scratch, &p.x, &p.post, &p.comb}) Write(*view);
}

void DeviceCopies::Take(HcPostParams& p) {
  for (TensorView* view : {&p.x, &p.post, &p.comb}) Read(*view);
  Write(p.streams);
}

void DeviceCopies::Take(HcBoundaryParams& p) {
  Take(p.post);
  Take(p.pre);
}

void DeviceCopies::Take(HcHeadParams& p) {
  for (TensorView* view : {&p.streams, &p.rows, &p.base, &p.scale, &p.norm_weight}) Read(*view);
  Read(p.fn);
  Write(p.x);
}

void DeviceCopies::Take(LinearParams& p) {
  Read(p.x);
  Read(p.weight);
  Write(p.scratch);
  Write(p.out);
}

void DeviceCopies::Take(RmsNormParams& p) {
  Read(p.x);
  Read(p.weight);
  Write(p.out);
}

void DeviceCopies::Take(QueryNormRopeParams& p) {
  Read(p.positions);
  Read(p.freqs);
  Write(p.q);
}

void DeviceCopies::Take(WindowLatentParams& p) {
  for (TensorView* view : {&p.kv, &p.weight, &p.positions, &p.freqs}) Read(*view);
  Write(p.latents);
}

void DeviceCopies::Take(StoreWindowParams& p) {
  Read(p.latents);
  Read(p.batch);
  Write(p.ring);
}

void DeviceCopies::Take(CompressKvParams& p) {
  for (TensorView* view : {&p.kv, &p.score, &p.ape, &p.norm_weight, &p.freqs}) Read(*view);
  Read(p.batch);
  Write(p.state_kv);
  Write(p.state_score);
  Write(p.entries);
}

void DeviceCopies::Take(IndexQueryParams& p) {
  for (TensorView* view : {&p.raw_weight, &p.positions, &p.freqs}) Read(*view);
  Write(p.q);
  Write(p.weight);
}

void DeviceCopies::Take(AttentionRowsParams& p) {
  Take(p.query);
  Take(p.window);
  if (!p.index_keys.kv.empty()) Take(p.index_keys);
  if (!p.entries.kv.empty()) Take(p.entries);
  if (!p.ring.latents.empty()) Take(p.ring);
}

void DeviceCopies::Take(QueryRowsParams& p) {
  Take(p.query);
  Take(p.index);
}

void DeviceCopies::Take(IndexTopKParams& p) {
  for (TensorView* view : {&p.q, &p.weight, &p.num_visible}) Read(*view);
  Read(p.batch);
  Write(p.keys);
  for (TensorView* view : {&p.scratch, &p.top_entries, &p.scores}) Write(*view);
}

void DeviceCopies::Take(SparseAttentionParams& p) {
  for (TensorView* view : {&p.q, &p.latents, &p.sink, &p.freqs, &p.top_entries}) Read(*view);
  Read(p.batch);
  Write(p.ring);
  if (p.ratio != 0) Write(p.entries);
  Write(p.scratch);
  Write(p.out);
}

void DeviceCopies::Take(MoeRouteParams& p) {
  for (TensorView* view : {&p.x, &p.bias, &p.tid2eid, &p.ids}) Read(*view);
  Read(p.gate);
  Write(p.experts);
  Write(p.weights);
}

void DeviceCopies::Read(BatchIndex& batch) {
  for (TensorView* view : {&batch.positions, &batch.token_seq, &batch.seq_first, &batch.seq_tokens,
                           &batch.seq_slot, &batch.block_table}) {
    Read(*view);
  }
}

void DeviceCopies::Write(RowStore& store) {
  AddView(store.payload, true);
  AddView(store.scale, true);
}

void DeviceCopies::Add(std::byte** pointer, int64_t num_bytes, bool written) {
  if (num_bytes == 0) return;
  ranges_.push_back({*pointer, *pointer + num_bytes, written});
  pointers_.push_back(pointer);
}

void DeviceCopies::AddView(TensorView& view, bool written) {
  if (view.empty() || view.device == Device::kCuda || ExtentOf(view) == 0) return;
  ranges_.push_back({view.as<std::byte>(), view.as<std::byte>() + ExtentOf(view), written});
  views_.push_back(&view);
}

void DeviceCopies::Upload() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (const Range& range : ranges_) {
    if (!merged_.empty() && range.begin < merged_.back().end) {
      merged_.back().end = std::max(merged_.back().end, range.end);
      merged_.back().written |= range.written;
    } else {
      merged_.push_back(range);
    }
  }
  PlaceRanges();
  for (const Range& range : merged_) CopyNow(range.device, range.begin, range.end - range.begin);
  for (std::byte** pointer : pointers_) *pointer = DeviceAddress(*pointer);
  for (TensorView* view : views_) view->data = DeviceAddress(view->as<std::byte>());
}

void DeviceCopies::Finish() {
  Synchronize();
  for (const Range& range : merged_) {
    const int64_t size = range.end - range.begin;
    if (range.written) CopyNow(range.begin, range.device, size);
    if (ExactBuffers()) continue;
    const int64_t behind = RoundUpToCopyAlignment(size) - size + kGuardBytes;
    std::vector<std::byte> guard(static_cast<size_t>(behind));
    CopyNow(guard.data(), range.device + size, behind);
    const bool intact = std::all_of(guard.begin(), guard.end(),
                                    [](std::byte value) { return value == std::byte{kPoison}; });
    EXPECT_TRUE(intact) << "an op wrote behind a tensor of " << size << " bytes";
  }
}

void DeviceCopies::PlaceRanges() {
  int64_t at = 0;
  for (Range& range : merged_) {
    const int64_t size = range.end - range.begin;
    if (ExactBuffers()) {
      exact_.push_back(Buffer::Allocate(size, WorkMemory(stream_.device())).value());
      range.device = exact_.back().data();
    } else {
      range.device = arena_.data() + at;
      at += RoundUpToCopyAlignment(size) + kGuardBytes;
    }
  }
  CHECK_LE(at, arena_.size()) << "the arena of the mirror is too small";
  stream_.FillBytes(arena_.data(), kPoison, at);
  Synchronize();
}

std::byte* DeviceCopies::DeviceAddress(const std::byte* host) const {
  for (const Range& range : merged_) {
    if (host >= range.begin && host < range.end) return range.device + (host - range.begin);
  }
  LOG(FATAL) << "an address of no range";
  return nullptr;
}

// Through the stream; memory of tests is not pinned, which such a copy waits for.
void DeviceCopies::CopyNow(void* to, const void* from, int64_t num_bytes) {
  stream_.Copy(to, from, num_bytes);
  Synchronize();
}

void DeviceCopies::Synchronize() {
  const absl::Status status = stream_.Synchronize();
  CHECK(status.ok()) << status.ToString();
}

}  // namespace lodestone
