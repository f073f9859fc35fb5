#include <algorithm>
#include <cmath>

#include "kernels/numeric/fp8.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

// The per-head norm of bf16 queries, rounded after every step as the vendor's tensors are.
// Spec 8.1.
void NormHeadBf16(float* q, int64_t n, float eps) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(RoundToBf16(q[i] * q[i]));
  const float mean = RoundToBf16(static_cast<float>(sum / static_cast<double>(n)));
  const double radicand = static_cast<double>(RoundToBf16(mean + eps));
  const float factor = RoundToBf16(static_cast<float>(1.0 / std::sqrt(radicand)));
  for (int64_t i = 0; i < n; ++i) q[i] = RoundToBf16(q[i] * factor);
}

void NormHeadExact(float* q, int64_t n, float eps) {
  const double factor = 1.0 / std::sqrt(MeanSquare(q, n) + static_cast<double>(eps));
  for (int64_t i = 0; i < n; ++i) q[i] = static_cast<float>(static_cast<double>(q[i]) * factor);
}

}  // namespace

void RmsNorm(const RmsNormParams& p) {
  const int64_t n = p.x.shape[1];
  const std::vector<float> weight = ReadAll(p.weight);
  std::vector<float> row(n);
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    ReadRow(p.x, t * p.x.strides[0], n, row.data());
    RmsNormRow(row.data(), weight.data(), n, p.eps, p.out.dtype);
    WriteRow(p.out, t * p.out.strides[0], n, row.data());
  }
}

void QueryNormRope(const QueryNormRopeParams& p) {
  const DType act = p.q.dtype;
  const int64_t dims = p.q.shape[2];
  std::vector<float> q(dims);
  for (int64_t t = 0; t < p.q.shape[0]; ++t) {
    const std::vector<CosSin> angles = Angles(p.positions.as<int32_t>()[t], p.freqs);
    for (int64_t h = 0; h < p.q.shape[1]; ++h) {
      const int64_t offset = t * p.q.strides[0] + h * p.q.strides[1];
      ReadRow(p.q, offset, dims, q.data());
      if (act == DType::kBf16) {
        NormHeadBf16(q.data(), dims, p.eps);
      } else {
        NormHeadExact(q.data(), dims, p.eps);
      }
      RotateTail(q.data(), dims, angles, /*inverse=*/false, act);
      WriteRow(p.q, offset, dims, q.data());
    }
  }
}

void WindowLatent(const WindowLatentParams& p) {
  const DType act = p.kv.dtype;
  const int64_t dims = p.kv.shape[1];
  const int64_t coded = dims - 2 * p.freqs.shape[0];
  const std::vector<float> weight = ReadAll(p.weight);
  std::vector<float> row(dims);
  for (int64_t t = 0; t < p.kv.shape[0]; ++t) {
    ReadRow(p.kv, t * p.kv.strides[0], dims, row.data());
    RmsNormRow(row.data(), weight.data(), dims, p.eps, act);
    RotateTail(row.data(), dims, Angles(p.positions.as<int32_t>()[t], p.freqs), /*inverse=*/false,
               act);
    if (p.round_fp8) {
      for (int64_t i = 0; i < coded; i += kFp8KvGroup) RoundFp8Group(row.data() + i, kFp8KvGroup);
    }
    WriteRow(p.latents, t * p.latents.strides[0], dims, row.data());
  }
}

void StoreWindow(const StoreWindowParams& p) {
  const int64_t dims = p.latents.shape[1];
  const int64_t window = p.ring.payload.shape[1];
  for (int64_t b = 0; b < p.batch.num_seqs(); ++b) {
    const int64_t end = p.batch.seq_first.as<int32_t>()[b] + p.batch.seq_tokens.as<int32_t>()[b];
    const int64_t count = std::min<int64_t>(window, p.batch.seq_tokens.as<int32_t>()[b]);
    for (int64_t t = end - count; t < end; ++t) {
      const std::vector<float> row = ReadRow(p.latents, t * p.latents.strides[0], dims);
      const StoredRow stored = RowAt(p.ring, p.batch.seq_slot.as<int32_t>()[b],
                                     p.batch.positions.as<int32_t>()[t] % window);
      EncodeLatentRow(p.format, row.data(), dims, p.rope_dims, stored.payload, stored.scale);
    }
  }
}

}  // namespace lodestone::reference
