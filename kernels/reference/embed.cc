#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {

void EmbedTokens(const EmbedTokensParams& p) {
  const int64_t dims = p.table.shape[1];
  std::vector<float> row(dims);
  for (int64_t t = 0; t < p.ids.shape[0]; ++t) {
    ReadRow(p.table, p.ids.as<int32_t>()[t] * p.table.strides[0], dims, row.data());
    for (int64_t m = 0; m < p.streams.shape[1]; ++m) {
      WriteRow(p.streams, t * p.streams.strides[0] + m * p.streams.strides[1], dims, row.data());
    }
  }
}

}  // namespace lodestone::reference
