#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/numeric/fp4.h"
#include "kernels/numeric/fp8.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

// Codes of one head in place of its values; returns the scale they share.
float QuantizeHeadFp8(std::vector<float>& q) {
  std::vector<uint8_t> codes(q.size());
  const float scale = QuantizeFp8Row(q.data(), static_cast<int64_t>(q.size()), codes.data());
  for (size_t i = 0; i < q.size(); ++i) q[i] = E4m3ToFloat(codes[i]);
  return scale;
}

struct Key {
  std::vector<float> values;
  float factor = 1;
};

// Query heads of one token [H_i, d_i], and their weights.
struct Query {
  std::vector<float> q;
  std::vector<float> weight;
};

// A NaN of the dot product stays NaN.
double Relu(double x) { return x < 0 ? 0 : x; }

float Score(const Query& query, const Key& key) {
  const int64_t dims = static_cast<int64_t>(key.values.size());
  double score = 0;
  for (size_t h = 0; h < query.weight.size(); ++h) {
    const float* q = query.q.data() + static_cast<int64_t>(h) * dims;
    double dot = 0;
    for (int64_t i = 0; i < dims; ++i) {
      dot += static_cast<double>(q[i]) * static_cast<double>(key.values[i]);
    }
    score += static_cast<double>(query.weight[h]) * Relu(dot);
  }
  return static_cast<float>(score) * key.factor;
}

// Higher score first, then the lower entry; NaN below every number.
std::vector<int32_t> BestEntries(const std::vector<float>& scores, int64_t k) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(scores[a]) || std::isnan(scores[b])) {
      return !std::isnan(scores[a]) && std::isnan(scores[b]);
    }
    return scores[a] > scores[b];
  });
  order.resize(std::min<size_t>(order.size(), static_cast<size_t>(k)));
  std::sort(order.begin(), order.end());
  return order;
}

Query ReadQuery(const IndexTopKParams& p, int64_t t) {
  const int64_t heads = p.q.shape[1];
  const int64_t dims = p.q.shape[2];
  Query query{std::vector<float>(heads * dims), std::vector<float>(heads)};
  for (int64_t h = 0; h < heads; ++h) {
    ReadRow(p.q, t * p.q.strides[0] + h * p.q.strides[1], dims, query.q.data() + h * dims);
    query.weight[h] = p.weight.row<float>(t)[h];
  }
  return query;
}

// Keys of entries [0, count) of one sequence.
std::vector<Key> ReadKeys(const IndexTopKParams& p, int64_t seq, int64_t count) {
  const int64_t dims = p.q.shape[2];
  std::vector<Key> keys(count);
  for (int64_t n = 0; n < count; ++n) {
    const StoredRow row = EntryAt(p.keys, p.batch, seq, n, /*ratio=*/4);
    keys[n].values.resize(dims);
    keys[n].factor =
        DecodeIndexKeyRow(p.format, row.payload, row.scale, dims, keys[n].values.data());
  }
  return keys;
}

}  // namespace

void IndexQuery(const IndexQueryParams& p) {
  const DType act = p.q.dtype;
  const int64_t heads = p.q.shape[1];
  const int64_t dims = p.q.shape[2];
  const float constant = static_cast<float>(1.0 / std::sqrt(static_cast<double>(dims * heads)));
  std::vector<float> raw(heads);
  std::vector<float> q(dims);
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const std::vector<CosSin> angles = Angles(p.positions.as<int32_t>()[t], p.freqs);
    ReadRow(p.raw_weight, t * p.raw_weight.strides[0], heads, raw.data());
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t offset = t * p.q.strides[0] + h * p.q.strides[1];
      ReadRow(p.q, offset, dims, q.data());
      RotateTail(q.data(), dims, angles, /*inverse=*/false, act);
      Hadamard(q.data(), dims);
      RoundAll(act, q.data(), dims);
      float scale = 1;
      if (p.rounding == IndexRounding::kFp4) {
        for (int64_t i = 0; i < dims; i += kFp4Group) RoundFp4Group(q.data() + i, kFp4Group);
      } else if (p.rounding == IndexRounding::kFp8) {
        scale = QuantizeHeadFp8(q);
      }
      WriteRow(p.q, offset, dims, q.data());
      p.weight.row<float>(t)[h] = Round(act, raw[h] * constant) * scale;
    }
  }
}

void IndexTopK(const IndexTopKParams& p) {
  const int64_t k = p.top_entries.shape[1];
  for (int64_t b = 0; b < p.batch.num_seqs(); ++b) {
    const int64_t first = p.batch.seq_first.as<int32_t>()[b];
    const int64_t end = first + p.batch.seq_tokens.as<int32_t>()[b];
    const int32_t* num_visible = p.num_visible.as<int32_t>();
    const std::vector<Key> keys =
        ReadKeys(p, b, *std::max_element(num_visible + first, num_visible + end));
    for (int64_t t = first; t < end; ++t) {
      const Query query = ReadQuery(p, t);
      std::vector<float> scores(num_visible[t]);
      for (int32_t n = 0; n < num_visible[t]; ++n) scores[n] = Score(query, keys[n]);
      if (!p.scores.empty()) std::copy(scores.begin(), scores.end(), p.scores.row<float>(t));
      const std::vector<int32_t> best = BestEntries(scores, k);
      int32_t* out = p.top_entries.row<int32_t>(t);
      std::fill(std::copy(best.begin(), best.end(), out), out + k, -1);
    }
  }
}

}  // namespace lodestone::reference
