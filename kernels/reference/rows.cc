#include "kernels/reference/rows.h"

#include <cmath>
#include <cstring>

#include "kernels/numeric/bf16.h"

namespace lodestone::reference {

float Round(DType act, float x) { return act == DType::kBf16 ? RoundToBf16(x) : x; }

void RoundAll(DType act, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = Round(act, x[i]);
}

void ReadRow(const TensorView& view, int64_t offset, int64_t n, float* out) {
  if (view.dtype == DType::kBf16) {
    const uint16_t* in = view.as<uint16_t>() + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = Bf16ToFloat(in[i]);
    return;
  }
  const float* in = view.as<float>() + offset;
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
}

void WriteRow(const TensorView& view, int64_t offset, int64_t n, const float* values) {
  if (view.dtype == DType::kBf16) {
    uint16_t* out = view.as<uint16_t>() + offset;
    for (int64_t i = 0; i < n; ++i) out[i] = FloatToBf16(values[i]);
    return;
  }
  float* out = view.as<float>() + offset;
  for (int64_t i = 0; i < n; ++i) out[i] = values[i];
}

std::vector<float> ReadRow(const TensorView& view, int64_t offset, int64_t n) {
  std::vector<float> row(n);
  ReadRow(view, offset, n, row.data());
  return row;
}

std::vector<float> ReadAll(const TensorView& view) {
  if (view.rank == 1) return ReadRow(view, 0, view.shape[0]);
  std::vector<float> values(view.shape[0] * view.shape[1]);
  for (int64_t i = 0; i < view.shape[0]; ++i) {
    ReadRow(view, i * view.strides[0], view.shape[1], values.data() + i * view.shape[1]);
  }
  return values;
}

StoredRow RowAt(const RowStore& store, int64_t block, int64_t row) {
  StoredRow stored{store.payload.row<std::byte>(block) + row * store.payload.strides[1], nullptr};
  if (!store.scale.empty()) {
    stored.scale = store.scale.row<std::byte>(block) + row * store.scale.strides[1];
  }
  return stored;
}

StoredRow EntryAt(const RowStore& store, const BatchIndex& batch, int64_t seq, int64_t entry,
                  int64_t ratio) {
  const int64_t page = batch.block_table.row<int32_t>(seq)[entry * ratio / kPageTokens];
  return RowAt(store, page, entry % (kPageTokens / ratio));
}

std::vector<CosSin> Angles(int32_t position, const TensorView& freqs) {
  std::vector<CosSin> angles(freqs.shape[0]);
  for (int64_t i = 0; i < freqs.shape[0]; ++i) {
    angles[i] = RopeAngle(position, freqs.as<float>()[i]);
  }
  return angles;
}

double MeanSquare(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  return sum / static_cast<double>(n);
}

void RmsNormRow(float* x, const float* weight, int64_t n, float eps, DType act) {
  const double factor = 1.0 / std::sqrt(MeanSquare(x, n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i) {
    const double value = static_cast<double>(weight[i]) * (static_cast<double>(x[i]) * factor);
    x[i] = Round(act, static_cast<float>(value));
  }
}

void RotateTail(float* x, int64_t n, const std::vector<CosSin>& angles, bool inverse, DType act) {
  const int64_t num_pairs = static_cast<int64_t>(angles.size());
  float* tail = x + n - 2 * num_pairs;
  RotatePairs(tail, angles.data(), num_pairs, inverse);
  RoundAll(act, tail, 2 * num_pairs);
}

}  // namespace lodestone::reference
