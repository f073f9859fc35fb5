#include <algorithm>
#include <cstring>

#include "base/logging.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/rows.h"

namespace lodestone::cpu {
namespace {

// One sequence's part of the batch and its compressor state. A chunk is by definition the
// token-by-token update repeated (docs/model.md 8.5): all groups are pooled from the state as it
// was before the chunk and from the chunk's tokens, then the state is brought to where it would
// have arrived.
class Chunk {
 public:
  Chunk(const CompressKvParams& params, int64_t seq_index)
      : p_(params),
        first_token_(params.batch.seq_first.as<int32_t>()[seq_index]),
        num_tokens_(params.batch.seq_tokens.as<int32_t>()[seq_index]),
        first_position_(params.batch.positions.as<int32_t>()[first_token_]),
        slot_(params.batch.seq_slot.as<int32_t>()[seq_index]) {}

  int64_t first_group() const { return first_position_ / p_.ratio; }
  int64_t end_group() const { return end_position() / p_.ratio; }
  int64_t num_groups() const { return end_group() - first_group(); }
  int64_t num_tokens() const { return num_tokens_; }

  // The candidates of `group`, in token order.
  void Candidates(int64_t group, PoolArgs* args) const {
    const int64_t channels = p_.norm_weight.shape[0];
    const int64_t start = group * p_.ratio;
    args->num_channels = channels;
    if (p_.ratio == 4 && group > 0) {
      for (int64_t position = start - 4; position < start; ++position) Add(position, 0, args);
    }
    const int64_t channel = p_.ratio == 4 ? channels : 0;
    for (int64_t position = start; position < start + p_.ratio; ++position) {
      Add(position, channel, args);
    }
  }

  // Moves the state over the chunk. Every Candidates() of this chunk must have been used.
  void UpdateState() const {
    if (p_.ratio == 4 && num_groups() > 0) {
      for (int64_t i = 0; i < 4; ++i) CopyToCompleted(end_group() * 4 - 4 + i, i);
    }
    const int64_t kept = std::min(p_.ratio, num_tokens_);
    for (int64_t position = end_position() - kept; position < end_position(); ++position) {
      const int64_t row = InProgressRow(position);
      std::memcpy(StateKv(row), ChunkKv(position), RowBytesOfState());
      AddRows(ChunkScore(position), Ape(position), StateScore(row));
    }
  }

 private:
  int64_t end_position() const { return first_position_ + num_tokens_; }
  int64_t InProgressRow(int64_t position) const {
    return position % p_.ratio + (p_.ratio == 4 ? 4 : 0);
  }
  const float* ChunkKv(int64_t position) const {
    return p_.kv.row<float>(first_token_ + position - first_position_);
  }
  const float* ChunkScore(int64_t position) const {
    return p_.score.row<float>(first_token_ + position - first_position_);
  }
  const float* Ape(int64_t position) const { return p_.ape.row<float>(position % p_.ratio); }
  float* StateKv(int64_t row) const {
    return p_.state_kv.row<float>(slot_) + row * p_.state_kv.strides[1];
  }
  float* StateScore(int64_t row) const {
    return p_.state_score.row<float>(slot_) + row * p_.state_score.strides[1];
  }
  size_t RowBytesOfState() const { return static_cast<size_t>(p_.kv.shape[1]) * sizeof(float); }

  void Add(int64_t position, int64_t channel, PoolArgs* args) const {
    const int64_t i = args->count++;
    if (position >= first_position_) {
      args->kv[i] = ChunkKv(position) + channel;
      args->score[i] = ChunkScore(position) + channel;
      args->ape[i] = Ape(position) + channel;
      return;
    }
    const bool completed = position < first_group() * p_.ratio;
    const int64_t row = completed ? position % 4 : InProgressRow(position);
    args->kv[i] = StateKv(row) + channel;
    args->score[i] = StateScore(row) + channel;
  }

  // Row `row` of the last completed group becomes the token at `position`.
  void CopyToCompleted(int64_t position, int64_t row) const {
    if (position >= first_position_) {
      std::memcpy(StateKv(row), ChunkKv(position), RowBytesOfState());
      AddRows(ChunkScore(position), Ape(position), StateScore(row));
    } else {
      std::memcpy(StateKv(row), StateKv(InProgressRow(position)), RowBytesOfState());
      std::memcpy(StateScore(row), StateScore(InProgressRow(position)), RowBytesOfState());
    }
  }
  void AddRows(const float* score, const float* ape, float* out) const {
    for (int64_t i = 0; i < p_.kv.shape[1]; ++i) out[i] = score[i] + ape[i];
  }

  const CompressKvParams& p_;
  const int64_t first_token_;
  const int64_t num_tokens_;
  const int64_t first_position_;
  const int64_t slot_;
};

// Norm, rotation, rounding and storage of a pooled vector.
void StoreEntry(const Context& context, const CompressKvParams& p, int64_t seq, int64_t group,
                const float* pooled) {
  const SimdTable& simd = context.simd;
  const int64_t c = p.norm_weight.shape[0];
  const bool bf16 = p.act == DType::kBf16;
  alignas(64) std::byte row[kMaxRowDims * sizeof(float)];
  simd.narrow(pooled, c, bf16, row);
  simd.rms_norm(row, p.norm_weight.as<uint16_t>(), p.eps, c, bf16, row);
  const RopeRow rope(static_cast<int32_t>(group * p.ratio), p.freqs, /*inverse=*/false);
  RotateTail(simd, rope, row, c, bf16);
  const StoredRow stored = EntryAt(p.entries, p.batch, seq, group, p.ratio);
  if (p.row == CompressedRow::kLatent) {
    if (p.round_fp8) RoundFp8Groups(simd, row, c - rope.dims, bf16);
    StoreLatent(simd, row, bf16, c, rope.dims, p.kv_format, stored);
    return;
  }
  TransformRow(simd, row, c, bf16);
  if (p.index_rounding == IndexRounding::kFp4) RoundFp4Groups(simd, row, c, bf16);
  StoreIndexKey(simd, row, bf16, c, p.index_format, stored);
}

void PoolGroup(const Context& context, const CompressKvParams& p, int64_t seq, int64_t group) {
  alignas(64) float pooled[kMaxRowDims];
  PoolArgs args;
  Chunk(p, seq).Candidates(group, &args);
  args.out = pooled;
  context.simd.pool(args);
  StoreEntry(context, p, seq, group, pooled);
}

}  // namespace

void CompressKv(const Context& context, const CompressKvParams& p, ThreadPool& pool) {
  const int64_t c = p.norm_weight.shape[0];
  CHECK(c <= kMaxRowDims && c % 16 == 0)
      << "compressed rows have " << c << " dims, the CPU ops take multiples of 16 up to "
      << kMaxRowDims;
  const int64_t num_seqs = p.batch.num_seqs();
  int64_t num_groups = 0;
  for (int64_t seq = 0; seq < num_seqs; ++seq) num_groups += Chunk(p, seq).num_groups();
  const int64_t group_ns = c * std::min<int64_t>(p.ratio, 8) / 4 + 1000;
  ForRanges(pool, num_groups, group_ns, 1, [&](int64_t first, int64_t count) {
    int64_t base = 0;  // number of the sequence's first group
    for (int64_t seq = 0; seq < num_seqs && base < first + count; ++seq) {
      const Chunk chunk(p, seq);
      const int64_t begin = std::max<int64_t>(0, first - base);
      const int64_t end = std::min(chunk.num_groups(), first + count - base);
      for (int64_t i = begin; i < end; ++i) PoolGroup(context, p, seq, chunk.first_group() + i);
      base += chunk.num_groups();
    }
  });
  const int64_t seq_ns = std::min(p.ratio, CeilDiv(p.batch.num_tokens(), num_seqs)) * c / 8;
  ForRanges(pool, num_seqs, seq_ns, 1, [&](int64_t first, int64_t count) {
    for (int64_t seq = first; seq < first + count; ++seq) Chunk(p, seq).UpdateState();
  });
}

}  // namespace lodestone::cpu
