#pragma once

#include "kernels/op_params.h"

// The ops as plain loops: the specification of every backend, used by tests only. Sums are formed
// in f64 and rounded to fp32 once, then to the type of the tensor they are stored in;
// single-threaded. Shapes have been checked by the caller (ReferenceOps in reference_ops.cc). One
// file per family.
namespace lodestone::reference {

void EmbedTokens(const EmbedTokensParams& params);          // embed.cc
void HcPre(const HcPreParams& params);                      // hyper_connection.cc
void HcPost(const HcPostParams& params);                    //
void HcHead(const HcHeadParams& params);                    //
void Linear(const LinearParams& params);                    // gemm.cc
void RmsNorm(const RmsNormParams& params);                  // norm_rope.cc
void QueryNormRope(const QueryNormRopeParams& params);      //
void WindowLatent(const WindowLatentParams& params);        //
void StoreWindow(const StoreWindowParams& params);          //
void CompressKv(const CompressKvParams& params);            // compress_kv.cc
void IndexQuery(const IndexQueryParams& params);            // index_topk.cc
void IndexTopK(const IndexTopKParams& params);              //
void SparseAttention(const SparseAttentionParams& params);  // sparse_attention.cc
void MoeRoute(const MoeRouteParams& params);                // moe.cc
void MoeExperts(const MoeExpertsParams& params);            //
void PackRows(const MoveRowsParams& params);                // pack_rows.cc
void ScatterRows(const MoveRowsParams& params);             //

}  // namespace lodestone::reference
