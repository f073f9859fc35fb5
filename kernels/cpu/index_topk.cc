#include <algorithm>
#include <cmath>
#include <functional>

#include "base/logging.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/rows.h"
#include "kernels/numeric/bf16.h"

// Scoring and selection run together: a block of tokens goes over panels of 32 entries in ascending
// order and keeps, per token, the best seen so far. So there is no score buffer, and memory depends
// neither on the number of tokens nor on that of entries.
namespace lodestone::cpu {
namespace {

constexpr int64_t kMaxBlockTokens = 64;
constexpr int64_t kQueryFloats = int64_t{64} << 10;  // of a block of tokens
constexpr int64_t kMaxKeyDims = 1024;
constexpr int64_t kListBytes = int64_t{1} << 20;  // candidate lists of a block

// Working memory of one block of tokens.
struct Slot {
  alignas(64) float q[kQueryFloats];
  alignas(64) float panel[kMaxKeyDims * kKeyPanel];
  alignas(64) float factor[kKeyPanel];
  alignas(64) float weight[kQueryFloats / 32];
  int32_t visible[kMaxBlockTokens];
  Candidates lists[kMaxBlockTokens];
  alignas(64) std::byte items[kListBytes];
};

void KeepBest(Candidates* list, int64_t keep) {
  if (list->count < keep) return;
  uint64_t* last = list->items + keep - 1;
  std::nth_element(list->items, last, list->items + list->count, std::greater<uint64_t>());
  list->count = keep;
  list->threshold = static_cast<int32_t>(static_cast<uint32_t>(*last >> 32) ^ 0x80000000u);
  list->full = true;
}

KeyCode CodeOf(IndexKeyFormat format) {
  switch (format) {
    case IndexKeyFormat::kBf16:
      return KeyCode::kBf16;
    case IndexKeyFormat::kF32:
      return KeyCode::kF32;
    case IndexKeyFormat::kFp8:
      return KeyCode::kE4m3;
    case IndexKeyFormat::kFp4:
      return KeyCode::kE2m1;
  }
  return KeyCode::kBf16;
}

// Tokens of one sequence that share key panels.
struct Block {
  int64_t seq;
  int64_t first_token;
  int64_t num_tokens;
};

class TopK {
 public:
  TopK(const Context& context, const IndexTopKParams& params, ThreadPool& pool)
      : simd_(context.simd),
        p_(params),
        pool_(pool),
        num_lanes_(context.num_lanes),
        slots_(reinterpret_cast<Slot*>(params.scratch.data)),
        heads_(params.q.shape[1]),
        dims_(params.q.shape[2]),
        keep_(params.top_entries.shape[1]),
        capacity_(2 * keep_ + kKeyPanel) {
    CHECK(dims_ % 32 == 0 && dims_ <= kMaxKeyDims && heads_ * dims_ <= kQueryFloats)
        << "IndexTopK: " << heads_ << " heads of " << dims_
        << " dims, want dims a multiple of 32 up to " << kMaxKeyDims << " and at most "
        << kQueryFloats << " values a token";
    const int64_t list_bytes = capacity_ * static_cast<int64_t>(sizeof(uint64_t));
    CHECK(list_bytes <= kListBytes)
        << "IndexTopK: top-k is " << keep_ << ", limit is " << kListBytes / 16 - kKeyPanel;
    block_tokens_ =
        std::min({kMaxBlockTokens, kQueryFloats / (heads_ * dims_), kListBytes / list_bytes});
  }

  void Run() {
    int64_t num_blocks = 0;
    for (int64_t seq = 0; seq < p_.batch.num_seqs(); ++seq) num_blocks += BlocksOf(seq);
    const int64_t lanes = std::min(num_lanes_, pool_.num_threads());
    // Few blocks (decode): several lanes share a block's entries, and the lists are merged after.
    const bool split = num_blocks < lanes && LongestVisible() >= kSplitEntries;
    const int64_t parts = split ? CeilDiv(lanes, num_blocks) : 1;
    const int64_t block_ns = BlockNs(num_blocks) / parts;
    ForLanes(pool_, static_cast<int>(lanes), num_blocks * parts, block_ns,
             [&](int64_t lane, int64_t item) {
               const Block block = FindBlock(item / parts);
               Slot& slot = slots_[parts > 1 ? item : lane];
               ScoreBlock(block, item % parts, parts, slot);
               if (parts == 1) StoreBlock(block, slot);
             });
    for (int64_t b = 0; parts > 1 && b < num_blocks; ++b)
      MergeParts(FindBlock(b), b * parts, parts);
  }

 private:
  static constexpr int64_t kSplitEntries = 512;

  const int32_t* num_visible() const { return p_.num_visible.as<int32_t>(); }
  bool wants_scores() const { return !p_.scores.empty(); }

  int64_t BlocksOf(int64_t seq) const {
    return CeilDiv(p_.batch.seq_tokens.as<int32_t>()[seq], block_tokens_);
  }
  Block FindBlock(int64_t index) const {
    int64_t seq = 0;
    for (; index >= BlocksOf(seq); ++seq) index -= BlocksOf(seq);
    const int64_t begin = index * block_tokens_;
    return {seq, p_.batch.seq_first.as<int32_t>()[seq] + begin,
            std::min(block_tokens_, p_.batch.seq_tokens.as<int32_t>()[seq] - begin)};
  }
  int64_t LongestVisible() const {
    const int32_t* visible = num_visible();
    return *std::max_element(visible, visible + p_.num_visible.shape[0]);
  }
  int64_t BlockNs(int64_t num_blocks) const {
    int64_t entries = 0;  // to be scored
    for (int64_t t = 0; t < p_.q.shape[0]; ++t) entries += Scored(t);
    const int64_t score_ns = entries * heads_ * dims_ / 50;
    return (score_ns + p_.q.shape[0] * keep_) / std::max<int64_t>(num_blocks, 1);
  }
  // Entries of a token that need scores: none if all are chosen anyway.
  int64_t Scored(int64_t token) const {
    const int64_t visible = num_visible()[token];
    return visible > keep_ || wants_scores() ? visible : 0;
  }

  // Scores part `part` of `parts` of the entries of a block, and leaves the candidates in the slot.
  void ScoreBlock(const Block& block, int64_t part, int64_t parts, Slot& slot) const {
    ScoreArgs args;
    const int64_t longest = Prepare(block, slot, &args);
    const int64_t panels = CeilDiv(longest, kKeyPanel);
    for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; ++panel) {
      args.first_entry = panel * kKeyPanel;
      LoadKeys(block.seq, args.first_entry, std::min(kKeyPanel, longest - args.first_entry), slot);
      simd_.score_panel(args);
    }
  }

  // Widens the block's queries and empties its lists. Returns the number of entries to go over.
  int64_t Prepare(const Block& block, Slot& slot, ScoreArgs* args) const {
    int64_t longest = 0;
    for (int64_t i = 0; i < block.num_tokens; ++i) {
      const int64_t token = block.first_token + i;
      slot.visible[i] = static_cast<int32_t>(Scored(token));
      longest = std::max<int64_t>(longest, slot.visible[i]);
      slot.lists[i] = Candidates();
      slot.lists[i].items = reinterpret_cast<uint64_t*>(slot.items) + i * capacity_;
      if (slot.visible[i] == 0) continue;
      for (int64_t h = 0; h < heads_; ++h) {
        simd_.widen(RowPointer(p_.q, token, h), IsBf16(p_.q), dims_,
                    slot.q + (i * heads_ + h) * dims_);
      }
      std::copy_n(p_.weight.row<float>(token), heads_, slot.weight + i * heads_);
    }
    args->q = slot.q;
    args->weight = slot.weight;
    args->num_tokens = block.num_tokens;
    args->heads = heads_;
    args->dim = dims_;
    args->visible = slot.visible;
    args->panel = slot.panel;
    args->factor = slot.factor;
    args->keep = keep_;
    args->capacity = capacity_;
    args->candidates = slot.lists;
    args->prune = KeepBest;
    if (wants_scores()) {
      args->scores = p_.scores.row<float>(block.first_token);
      args->scores_stride = p_.scores.strides[0];
    }
    return longest;
  }

  void LoadKeys(int64_t seq, int64_t first_entry, int64_t count, Slot& slot) const {
    static_assert(kPageTokens / 4 % kKeyPanel == 0, "a panel lies in one page");
    const StoredRow row = EntryAt(p_.keys, p_.batch, seq, first_entry, /*ratio=*/4);
    KeyPanelArgs args;
    args.code = CodeOf(p_.format);
    args.payload = row.payload;
    args.scale = row.scale;
    args.payload_bytes = p_.keys.payload.strides[1];
    args.scale_bytes = p_.keys.scale.empty() ? 0 : p_.keys.scale.strides[1];
    args.count = count;
    args.dim = dims_;
    args.panel = slot.panel;
    args.factor = slot.factor;
    simd_.load_key_panel(args);
  }

  void StoreBlock(const Block& block, Slot& slot) const {
    for (int64_t i = 0; i < block.num_tokens; ++i) {
      StoreToken(block.first_token + i, slot.lists[i]);
    }
  }

  void StoreToken(int64_t token, Candidates& list) const {
    int32_t* out = p_.top_entries.row<int32_t>(token);
    int64_t count = std::min<int64_t>(num_visible()[token], keep_);
    if (num_visible()[token] <= keep_) {
      for (int64_t i = 0; i < count; ++i) out[i] = static_cast<int32_t>(i);
    } else {
      KeepBest(&list, keep_);
      for (int64_t i = 0; i < count; ++i)
        out[i] = static_cast<int32_t>(~static_cast<uint32_t>(list.items[i]));
      std::sort(out, out + count);
    }
    std::fill(out + count, out + keep_, -1);
  }

  // Joins the lists of the slots from `first_slot` on into the first one's.
  void MergeParts(const Block& block, int64_t first_slot, int64_t parts) const {
    for (int64_t i = 0; i < block.num_tokens; ++i) {
      Candidates& list = slots_[first_slot].lists[i];
      KeepBest(&list, keep_);
      for (int64_t part = 1; part < parts; ++part) {
        Candidates& other = slots_[first_slot + part].lists[i];
        KeepBest(&other, keep_);
        std::copy_n(other.items, other.count, list.items + list.count);
        list.count += other.count;
        KeepBest(&list, keep_);
      }
      StoreToken(block.first_token + i, list);
    }
  }

  const SimdTable& simd_;
  const IndexTopKParams& p_;
  ThreadPool& pool_;
  const int num_lanes_;
  Slot* const slots_;
  const int64_t heads_;
  const int64_t dims_;
  const int64_t keep_;
  const int64_t capacity_;
  int64_t block_tokens_ = 0;
};

// One token of IndexQuery.
void TransformQuery(const Context& context, const IndexQueryParams& p, int64_t token) {
  const SimdTable& simd = context.simd;
  const int64_t heads = p.q.shape[1];
  const int64_t dims = p.q.shape[2];
  const bool bf16 = IsBf16(p.q);
  const RopeRow rope(p.positions.as<int32_t>()[token], p.freqs, /*inverse=*/false);
  const float constant = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims * heads)));
  float* weight = p.weight.row<float>(token);
  simd.widen(RowPointer(p.raw_weight, token), bf16, heads, weight);
  for (int64_t h = 0; h < heads; ++h) {
    std::byte* q = RowPointer(p.q, token, h);
    RotateTail(simd, rope, q, dims, bf16);
    TransformRow(simd, q, dims, bf16);
    weight[h] = bf16 ? RoundToBf16(weight[h] * constant) : weight[h] * constant;
    if (p.rounding == IndexRounding::kFp4) RoundFp4Groups(simd, q, dims, bf16);
    if (p.rounding == IndexRounding::kFp8) weight[h] *= CodeFp8Row(simd, q, dims, bf16);
  }
}

}  // namespace

void IndexQuery(const Context& context, const IndexQueryParams& p, ThreadPool& pool) {
  const int64_t head_ns = p.q.shape[2] * (p.rounding == IndexRounding::kNone ? 1 : 8) / 2;
  const int64_t token_ns = p.q.shape[1] * head_ns + 20 * p.freqs.shape[0];
  ForRanges(pool, p.q.shape[0], token_ns, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) TransformQuery(context, p, t);
  });
}

// With split blocks there are fewer than two slots per lane.
int64_t IndexTopKScratchBytes(const Context& context) {
  return 2 * context.num_lanes * static_cast<int64_t>(sizeof(Slot));
}

void IndexTopK(const Context& context, const IndexTopKParams& p, ThreadPool& pool) {
  if (p.q.shape[0] == 0) return;
  CHECK(p.scratch.num_bytes() >= IndexTopKScratchBytes(context))
      << "IndexTopK: scratch has " << p.scratch.num_bytes() << " bytes, want "
      << IndexTopKScratchBytes(context);
  TopK(context, p, pool).Run();
}

}  // namespace lodestone::cpu
