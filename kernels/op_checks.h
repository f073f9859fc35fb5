#pragma once

#include <cstdint>

#include "kernels/op_params.h"

// Shape and type checks of the params structs, shared by the backends. A wrong shape is a
// programmer error: the process ends with the op, the field, and the shape found beside the one
// wanted. Values (ids, positions, page numbers) are not looked at. No allocation unless a check
// fails.
namespace lodestone {

// `packed` is what PackWeight is to fill, `num_bytes` what it needs.
void CheckMatrixSource(const MatrixSource& source, const TensorView& packed, int64_t num_bytes);
void CheckEmbedTokens(const EmbedTokensParams& params);
void CheckHcPre(const HcPreParams& params, int64_t scratch_bytes);
void CheckHcPost(const HcPostParams& params);
void CheckHcHead(const HcHeadParams& params);
void CheckLinear(const LinearParams& params);
void CheckRmsNorm(const RmsNormParams& params);
void CheckQueryNormRope(const QueryNormRopeParams& params);
void CheckWindowLatent(const WindowLatentParams& params);
void CheckStoreWindow(const StoreWindowParams& params);
void CheckCompressKv(const CompressKvParams& params);
void CheckIndexQuery(const IndexQueryParams& params);
// Scratch of the ops below is checked for its type only where its size depends on values.
void CheckIndexTopK(const IndexTopKParams& params);
void CheckSparseAttention(const SparseAttentionParams& params);
void CheckMoeRoute(const MoeRouteParams& params);
void CheckMoeExperts(const MoeExpertsParams& params, int64_t scratch_bytes);
void CheckMoveRows(const MoveRowsParams& params);

}  // namespace lodestone
