#include <algorithm>
#include <cmath>

#include "base/logging.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/rows.h"
#include "kernels/numeric/row_codec.h"

namespace lodestone::cpu {
namespace {

constexpr int64_t kLanesOfRow = 16;

// Working memory of one lane, carved from the op's scratch.
struct Lane {
  const void** keys = nullptr;   // [padded_keys]
  float* probs = nullptr;        // [kHeadBlock, padded_keys]
  float* q = nullptr;            // [kHeadBlock, dim]
  std::byte* decoded = nullptr;  // kFp8 only: bf16 [max_keys, dim]
  int64_t padded_keys = 0;
};

// Rows in FP8 are decoded first; others are attended to where they lie, which at a context of a
// million tokens saves 8 MiB in each lane.
int64_t LaneBytes(int64_t max_keys, int64_t dim, KvFormat format) {
  const int64_t padded = RoundUp(max_keys, kLanesOfRow);
  const int64_t decoded = format == KvFormat::kFp8 ? padded * dim * 2 : 0;
  return RoundUp(padded * (8 + kHeadBlock * 4) + kHeadBlock * dim * 4 + decoded, 64);
}

class Attention {
 public:
  Attention(const Context& context, const SparseAttentionParams& params, ThreadPool& pool)
      : context_(context),
        p_(params),
        pool_(pool),
        heads_(params.q.shape[1]),
        dim_(params.q.shape[2]),
        bf16_(IsBf16(params.q)),
        max_keys_(LongestKeys()) {
    CHECK(dim_ % kLanesOfRow == 0) << "head dim is " << dim_ << ", want a multiple of 16";
    CHECK(SameBytes(p_.format, bf16_) || (p_.format == KvFormat::kFp8 && bf16_))
        << "SparseAttention: rows in " << Name(p_.format) << " with activations in "
        << Name(p_.q.dtype);
    CHECK(p_.scratch.num_bytes() >= context.num_lanes * LaneBytes(max_keys_, dim_, p_.format))
        << "SparseAttention: scratch has " << p_.scratch.num_bytes() << " bytes, want "
        << context.num_lanes * LaneBytes(max_keys_, dim_, p_.format);
  }

  // A task is a token, or a token's block of heads where there are few tokens.
  void Run() {
    const int64_t tokens = p_.q.shape[0];
    const int64_t blocks = CeilDiv(heads_, kHeadBlock);
    const int64_t parts = tokens >= 4 * context_.num_lanes ? 1 : blocks;
    const int64_t item_ns = max_keys_ * dim_ * (blocks / parts) / 12;
    ForLanes(pool_, context_.num_lanes, tokens * parts, item_ns, [&](int64_t index, int64_t item) {
      const Lane lane = LaneAt(index);
      const int64_t token = item / parts;
      const int64_t num_keys = FindKeys(token, lane);
      const RopeRow rope(p_.batch.positions.as<int32_t>()[token], p_.freqs, /*inverse=*/true);
      const int64_t first = item % parts * blocks / parts;
      const int64_t end = (item % parts + 1) * blocks / parts;
      for (int64_t block = first; block < end; ++block) {
        AttendHeads(token, block * kHeadBlock, num_keys, rope, lane);
      }
    });
  }

 private:
  int64_t NumEntries(int64_t position) const {
    return p_.ratio == 128 ? (position + 1) / p_.ratio
           : p_.ratio == 4 ? p_.top_entries.shape[1]
                           : 0;
  }
  int64_t LongestKeys() const {
    int64_t longest = 0;
    for (int64_t t = 0; t < p_.q.shape[0]; ++t) {
      const int64_t position = p_.batch.positions.as<int32_t>()[t];
      longest = std::max(longest, std::min(position + 1, p_.window) + NumEntries(position));
    }
    return longest;
  }

  Lane LaneAt(int64_t index) const {
    Lane lane;
    lane.padded_keys = RoundUp(max_keys_, kLanesOfRow);
    std::byte* at = p_.scratch.as<std::byte>() + index * LaneBytes(max_keys_, dim_, p_.format);
    lane.keys = reinterpret_cast<const void**>(at);
    at += lane.padded_keys * static_cast<int64_t>(sizeof(void*));
    lane.probs = reinterpret_cast<float*>(at);
    at += kHeadBlock * lane.padded_keys * static_cast<int64_t>(sizeof(float));
    lane.q = reinterpret_cast<float*>(at);
    lane.decoded = at + kHeadBlock * dim_ * static_cast<int64_t>(sizeof(float));
    return lane;
  }

  // Fills lane.keys with the rows that `token` attends to, in order; returns how many. The list is
  // padded with its last row to a multiple of kKeyBlock.
  int64_t FindKeys(int64_t token, const Lane& lane) const {
    const int64_t seq = p_.batch.token_seq.as<int32_t>()[token];
    const int64_t position = p_.batch.positions.as<int32_t>()[token];
    const int64_t first_token = p_.batch.seq_first.as<int32_t>()[seq];
    const int64_t first_position = p_.batch.positions.as<int32_t>()[first_token];
    const int64_t slot = p_.batch.seq_slot.as<int32_t>()[seq];
    int64_t count = 0;
    for (int64_t at = std::max<int64_t>(0, position - p_.window + 1); at <= position; ++at) {
      if (at >= first_position) {
        lane.keys[count++] = RowPointer(p_.latents, first_token + at - first_position);
      } else {
        AddStored(RowAt(p_.ring, slot, at % p_.window), lane, &count);
      }
    }
    const int32_t* chosen = p_.ratio == 4 ? p_.top_entries.row<int32_t>(token) : nullptr;
    for (int64_t i = 0; i < NumEntries(position); ++i) {
      const int64_t entry = chosen != nullptr ? chosen[i] : i;
      if (entry >= 0) AddStored(EntryAt(p_.entries, p_.batch, seq, entry, p_.ratio), lane, &count);
    }
    for (int64_t i = count; i < RoundUp(count, kKeyBlock); ++i) lane.keys[i] = lane.keys[count - 1];
    return count;
  }

  // A row that holds activations is attended to where it lies, any other is decoded first.
  void AddStored(const StoredRow& row, const Lane& lane, int64_t* count) const {
    if (SameBytes(p_.format, bf16_)) {
      lane.keys[(*count)++] = row.payload;
      return;
    }
    float values[kMaxRowDims];
    CHECK(dim_ <= kMaxRowDims) << "head dim is " << dim_ << ", the CPU ops take " << kMaxRowDims;
    DecodeLatentRow(p_.format, row.payload, row.scale, dim_, 2 * p_.freqs.shape[0], values);
    std::byte* out = lane.decoded + *count * dim_ * 2;
    context_.simd.narrow(values, dim_, /*bf16=*/true, out);
    lane.keys[(*count)++] = out;
  }

  void AttendHeads(int64_t token, int64_t first_head, int64_t num_keys, const RopeRow& rope,
                   const Lane& lane) const {
    const int64_t num_heads = std::min(kHeadBlock, heads_ - first_head);
    for (int64_t h = 0; h < kHeadBlock; ++h) {
      // Heads beyond the last repeat it; their results are dropped.
      const int64_t head = first_head + std::min(h, num_heads - 1);
      context_.simd.widen(RowPointer(p_.q, token, head), bf16_, dim_, lane.q + h * dim_);
    }
    CHECK(heads_ == 1 || p_.out.strides[1] == dim_)
        << "SparseAttention: heads of out are not dense";
    AttendArgs args;
    args.q = lane.q;
    args.keys = lane.keys;
    args.num_keys = num_keys;
    args.dim = dim_;
    args.bf16 = bf16_;
    args.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dim_)));
    args.sink = p_.sink.as<float>() + first_head;
    args.num_heads = num_heads;
    args.probs = lane.probs;
    args.probs_stride = lane.padded_keys;
    args.out = RowPointer(p_.out, token, first_head);
    context_.simd.attend(args);
    for (int64_t h = 0; h < num_heads; ++h) {
      RotateTail(context_.simd, rope, RowPointer(p_.out, token, first_head + h), dim_, bf16_);
    }
  }

  const Context& context_;
  const SparseAttentionParams& p_;
  ThreadPool& pool_;
  const int64_t heads_;
  const int64_t dim_;
  const bool bf16_;
  const int64_t max_keys_;
};

}  // namespace

int64_t SparseAttentionScratchBytes(const Context& context, int64_t max_keys, int64_t head_dim,
                                    KvFormat format) {
  return context.num_lanes * LaneBytes(max_keys, head_dim, format);
}

void SparseAttention(const Context& context, const SparseAttentionParams& p, ThreadPool& pool) {
  if (p.q.shape[0] == 0) return;
  Attention(context, p, pool).Run();
}

}  // namespace lodestone::cpu
