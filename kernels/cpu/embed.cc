#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace lodestone::cpu {

void EmbedTokens(const Context& context, const EmbedTokensParams& p, ThreadPool& pool) {
  const int64_t dims = p.table.shape[1];
  const int64_t row_bytes = dims * BytesPerElement(p.streams.dtype);
  const auto embed = [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; ++t) {
      const uint16_t* row = p.table.row<uint16_t>(p.ids.as<int32_t>()[t]);
      for (int64_t m = 0; m < p.streams.shape[1]; ++m) {
        std::byte* out = RowPointer(p.streams, t, m);
        if (IsBf16(p.streams)) {
          std::memcpy(out, row, static_cast<size_t>(row_bytes));
        } else {
          context.simd.widen(row, true, dims, reinterpret_cast<float*>(out));
        }
      }
    }
  };
  ForRanges(pool, p.ids.shape[0], p.streams.shape[1] * row_bytes / 10, 1, embed);
}

}  // namespace lodestone::cpu
