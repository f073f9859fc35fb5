#include <cmath>
#include <limits>

#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

// The state of one sequence slot: rows of width w, kv and score.
struct State {
  float* kv;
  float* score;
  int64_t stride;
};

State StateOf(const CompressKvParams& p, int64_t slot) {
  return {p.state_kv.row<float>(slot), p.state_score.row<float>(slot), p.state_kv.strides[1]};
}

// One channel's softmax-weighted sum over (row, channel) candidates in order.
class ChannelPool {
 public:
  void Add(float score, float kv) {
    scores_.push_back(static_cast<double>(score));
    values_.push_back(static_cast<double>(kv));
  }
  float Result() const {
    double largest = -std::numeric_limits<double>::infinity();
    for (double score : scores_) largest = score > largest ? score : largest;
    double sum = 0;
    double total = 0;
    for (size_t i = 0; i < scores_.size(); ++i) {
      const double weight = std::exp(scores_[i] - largest);
      total += weight;
      sum += weight * values_[i];
    }
    return static_cast<float>(sum / total);
  }

 private:
  std::vector<double> scores_;
  std::vector<double> values_;
};

// P of the group that has just been completed. Spec 8.4, 8.5: ratio 4 pools half A of rows 0..3
// (the group before, absent for the first one) with half B of rows 4..7; ratio 128 pools all rows.
std::vector<float> PoolGroup(const State& state, int64_t ratio, int64_t c, bool first_group) {
  std::vector<float> pooled(c);
  for (int64_t j = 0; j < c; ++j) {
    ChannelPool pool;
    const auto add = [&](int64_t row, int64_t channel) {
      pool.Add(state.score[row * state.stride + channel], state.kv[row * state.stride + channel]);
    };
    if (ratio == 4) {
      for (int64_t row = 0; row < 4 && !first_group; ++row) add(row, j);
      for (int64_t row = 4; row < 8; ++row) add(row, c + j);
    } else {
      for (int64_t row = 0; row < ratio; ++row) add(row, j);
    }
    pooled[j] = pool.Result();
  }
  return pooled;
}

void StoreEntry(const CompressKvParams& p, int64_t seq, int64_t entry, std::vector<float> row,
                const std::vector<float>& norm_weight) {
  const int64_t c = static_cast<int64_t>(row.size());
  const int64_t rope_dims = 2 * p.freqs.shape[0];
  RoundAll(p.act, row.data(), c);
  RmsNormRow(row.data(), norm_weight.data(), c, p.eps, p.act);
  const int32_t position = static_cast<int32_t>(entry * p.ratio);  // of the group's first token
  RotateTail(row.data(), c, Angles(position, p.freqs), /*inverse=*/false, p.act);
  const StoredRow stored = EntryAt(p.entries, p.batch, seq, entry, p.ratio);
  if (p.row == CompressedRow::kLatent) {
    for (int64_t i = 0; p.round_fp8 && i < c - rope_dims; i += kFp8KvGroup) {
      RoundFp8Group(row.data() + i, kFp8KvGroup);
    }
    EncodeLatentRow(p.kv_format, row.data(), c, rope_dims, stored.payload, stored.scale);
    return;
  }
  Hadamard(row.data(), c);
  RoundAll(p.act, row.data(), c);
  for (int64_t i = 0; p.index_rounding == IndexRounding::kFp4 && i < c; i += kFp4Group) {
    RoundFp4Group(row.data() + i, kFp4Group);
  }
  EncodeIndexKeyRow(p.index_format, row.data(), c, stored.payload, stored.scale);
}

// Writes token t's (kv, score + ape) to its state row.
void StoreToken(const CompressKvParams& p, const State& state, int64_t t, int64_t position) {
  const int64_t in_group = position % p.ratio;
  const int64_t row = p.ratio == 4 ? 4 + in_group : in_group;
  for (int64_t j = 0; j < p.kv.shape[1]; ++j) {
    state.kv[row * state.stride + j] = p.kv.row<float>(t)[j];
    state.score[row * state.stride + j] = p.score.row<float>(t)[j] + p.ape.row<float>(in_group)[j];
  }
}

// The group in progress becomes the last completed one.
void ShiftGroups(const State& state, int64_t width) {
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t j = 0; j < width; ++j) {
      state.kv[row * state.stride + j] = state.kv[(row + 4) * state.stride + j];
      state.score[row * state.stride + j] = state.score[(row + 4) * state.stride + j];
    }
  }
}

}  // namespace

void CompressKv(const CompressKvParams& p) {
  const std::vector<float> norm_weight = ReadAll(p.norm_weight);
  const int64_t c = p.norm_weight.shape[0];
  for (int64_t t = 0; t < p.batch.num_tokens(); ++t) {
    const int64_t seq = p.batch.token_seq.as<int32_t>()[t];
    if (p.batch.seq_tokens.as<int32_t>()[seq] == 0) continue;  // fills the batch up
    const int64_t position = p.batch.positions.as<int32_t>()[t];
    const State state = StateOf(p, p.batch.seq_slot.as<int32_t>()[seq]);
    StoreToken(p, state, t, position);
    if ((position + 1) % p.ratio != 0) continue;
    const int64_t entry = position / p.ratio;
    StoreEntry(p, seq, entry, PoolGroup(state, p.ratio, c, entry == 0), norm_weight);
    if (p.ratio == 4) ShiftGroups(state, p.kv.shape[1]);
  }
}

}  // namespace lodestone::reference
