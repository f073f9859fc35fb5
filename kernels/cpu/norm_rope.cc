#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/row_steps.h"
#include "kernels/cpu/rows.h"

namespace lodestone::cpu {

void RmsNorm(const Context& context, const RmsNormParams& p, ThreadPool& pool) {
  const int64_t n = p.x.shape[1];
  ForRanges(pool, p.x.shape[0], n / 4 + 1, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      context.simd.rms_norm(RowPointer(p.x, t), p.weight.as<uint16_t>(), p.eps, n, IsBf16(p.x),
                            RowPointer(p.out, t));
    }
  });
}

void QueryNormRope(const Context& context, const QueryNormRopeParams& p, ThreadPool& pool) {
  const int64_t heads = p.q.shape[1];
  const int64_t dims = p.q.shape[2];
  const bool bf16 = IsBf16(p.q);
  const int64_t token_ns = heads * dims / 4 + 20 * p.freqs.shape[0];
  ForRanges(pool, p.q.shape[0], token_ns, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const RopeRow rope(p.positions.as<int32_t>()[t], p.freqs, /*inverse=*/false);
      for (int64_t h = 0; h < heads; ++h) {
        std::byte* head = RowPointer(p.q, t, h);
        context.simd.query_norm(head, p.eps, dims, bf16);
        RotateTail(context.simd, rope, head, dims, bf16);
      }
    }
  });
}

void WindowLatent(const Context& context, const WindowLatentParams& p, ThreadPool& pool) {
  const int64_t dims = p.kv.shape[1];
  const bool bf16 = IsBf16(p.kv);
  const int64_t token_ns = dims / 4 + 20 * p.freqs.shape[0] + (p.round_fp8 ? dims * 4 : 0);
  ForRanges(pool, p.kv.shape[0], token_ns, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      std::byte* out = RowPointer(p.latents, t);
      context.simd.rms_norm(RowPointer(p.kv, t), p.weight.as<uint16_t>(), p.eps, dims, bf16, out);
      const RopeRow rope(p.positions.as<int32_t>()[t], p.freqs, /*inverse=*/false);
      RotateTail(context.simd, rope, out, dims, bf16);
      if (p.round_fp8) RoundFp8Groups(context.simd, out, dims - rope.dims, bf16);
    }
  });
}

void StoreWindow(const Context& context, const StoreWindowParams& p, ThreadPool& pool) {
  const int64_t window = p.ring.payload.shape[1];
  const int64_t dims = p.latents.shape[1];
  const int32_t* seq_tokens = p.batch.seq_tokens.as<int32_t>();
  const int32_t* seq_first = p.batch.seq_first.as<int32_t>();
  const int64_t token_ns = p.format == KvFormat::kFp8 ? dims * 4 : dims / 8;
  ForRanges(pool, p.latents.shape[0], token_ns, 1, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const int32_t seq = p.batch.token_seq.as<int32_t>()[t];
      const int64_t left = seq_first[seq] + seq_tokens[seq] - t;
      if (left > window) continue;  // overwritten by a later token
      if (left <= 0) continue;      // fills the batch up
      const int64_t row = p.batch.positions.as<int32_t>()[t] % window;
      const StoredRow stored = RowAt(p.ring, p.batch.seq_slot.as<int32_t>()[seq], row);
      StoreLatent(context.simd, RowPointer(p.latents, t), IsBf16(p.latents), dims, p.rope_dims,
                  p.format, stored);
    }
  });
}

}  // namespace lodestone::cpu
