#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/numeric/row_codec.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

// Latents that one token attends to, in the order of their sums: [keys, d], widened.
class KeySet {
 public:
  KeySet(const SparseAttentionParams& p, int64_t token) : p_(p), dims_(p.q.shape[2]) {
    seq_ = p.batch.token_seq.as<int32_t>()[token];
    const int64_t position = p.batch.positions.as<int32_t>()[token];
    for (int64_t at = std::max<int64_t>(0, position - p.window + 1); at <= position; ++at) {
      AddWindowRow(at);
    }
    if (p.ratio == 128) {
      for (int64_t entry = 0; entry < (position + 1) / p.ratio; ++entry) AddEntry(entry);
    } else if (p.ratio == 4) {
      const int32_t* entries = p.top_entries.row<int32_t>(token);
      for (int64_t i = 0; i < p.top_entries.shape[1]; ++i) {
        if (entries[i] >= 0) AddEntry(entries[i]);
      }
    }
  }
  int64_t size() const { return static_cast<int64_t>(rows_.size()) / dims_; }
  const double* row(int64_t key) const { return rows_.data() + key * dims_; }

 private:
  // A position of this batch is not in the ring yet: StoreWindow runs later.
  void AddWindowRow(int64_t position) {
    std::vector<float> row(dims_);
    const int64_t first_token = p_.batch.seq_first.as<int32_t>()[seq_];
    const int64_t first_position = p_.batch.positions.as<int32_t>()[first_token];
    if (position >= first_position) {
      const int64_t token = first_token + position - first_position;
      ReadRow(p_.latents, token * p_.latents.strides[0], dims_, row.data());
    } else {
      const int64_t slot = p_.batch.seq_slot.as<int32_t>()[seq_];
      Decode(RowAt(p_.ring, slot, position % p_.window), row.data());
    }
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  void AddEntry(int64_t entry) {
    std::vector<float> row(dims_);
    Decode(EntryAt(p_.entries, p_.batch, seq_, entry, p_.ratio), row.data());
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  void Decode(const StoredRow& stored, float* row) const {
    DecodeLatentRow(p_.format, stored.payload, stored.scale, dims_, 2 * p_.freqs.shape[0], row);
  }

  const SparseAttentionParams& p_;
  const int64_t dims_;
  int64_t seq_ = 0;
  std::vector<double> rows_;
};

// s_j = (q . kv_j) * d^-1/2, in fp32.
std::vector<float> Scores(const std::vector<double>& q, const KeySet& keys) {
  const double factor = 1.0 / std::sqrt(static_cast<double>(q.size()));
  std::vector<float> scores(keys.size());
  for (int64_t j = 0; j < keys.size(); ++j) {
    const double* key = keys.row(j);
    double sum = 0;
    for (size_t i = 0; i < q.size(); ++i) sum += q[i] * key[i];
    scores[j] = static_cast<float>(sum * factor);
  }
  return scores;
}

std::vector<float> Attend(const std::vector<double>& q, const KeySet& keys, float sink, DType act) {
  const std::vector<float> scores = Scores(q, keys);
  const double largest = static_cast<double>(*std::max_element(scores.begin(), scores.end()));
  double denominator = std::exp(static_cast<double>(sink) - largest);
  std::vector<double> sums(q.size());
  for (int64_t j = 0; j < keys.size(); ++j) {
    const float p = static_cast<float>(std::exp(static_cast<double>(scores[j]) - largest));
    denominator += static_cast<double>(p);
    const double rounded = static_cast<double>(Round(act, p));
    const double* key = keys.row(j);
    for (size_t i = 0; i < q.size(); ++i) sums[i] += rounded * key[i];
  }
  std::vector<float> out(q.size());
  for (size_t i = 0; i < q.size(); ++i) {
    out[i] = Round(act, static_cast<float>(sums[i] / denominator));
  }
  return out;
}

}  // namespace

void SparseAttention(const SparseAttentionParams& p) {
  const DType act = p.q.dtype;
  const int64_t dims = p.q.shape[2];
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const KeySet keys(p, t);
    const std::vector<CosSin> angles = Angles(p.batch.positions.as<int32_t>()[t], p.freqs);
    for (int64_t h = 0; h < p.q.shape[1]; ++h) {
      const std::vector<float> q = ReadRow(p.q, t * p.q.strides[0] + h * p.q.strides[1], dims);
      std::vector<float> out =
          Attend(std::vector<double>(q.begin(), q.end()), keys, p.sink.as<float>()[h], act);
      RotateTail(out.data(), dims, angles, /*inverse=*/true, act);
      WriteRow(p.out, t * p.out.strides[0] + h * p.out.strides[1], dims, out.data());
    }
  }
}

}  // namespace lodestone::reference
