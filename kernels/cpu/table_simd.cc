#include "kernels/cpu/simd_functions.h"

namespace lodestone::LODESTONE_SIMD_NAMESPACE {

#define LODESTONE_TEXT_OF(name) #name
#define LODESTONE_TEXT(name) LODESTONE_TEXT_OF(name)

#if defined(__AVX512F__)
static constexpr int64_t kGemmRowBlock = 12;
#else
static constexpr int64_t kGemmRowBlock = 6;
#endif

const cpu::SimdTable kTable = {
    .name = LODESTONE_TEXT(LODESTONE_SIMD_NAMESPACE),
    .row_block = kGemmRowBlock,
    .gemm = Gemm,
    .gemm_quantised = GemmQuantised,
    .widen = Widen,
    .narrow = Narrow,
    .sum_squares = SumSquares,
    .rms_norm = RmsNorm,
    .query_norm = QueryNorm,
    .rotate = Rotate,
    .hadamard = Hadamard,
    .collapse_streams = CollapseStreams,
    .hc_mix = HcMix,
    .hc_post = HcPost,
    .pool = Pool,
    .load_key_panel = LoadKeyPanel,
    .score_panel = ScorePanel,
    .attend = Attend,
    .swiglu = Swiglu,
    .add_rows = AddRows,
    .fma_loop = FmaLoop,
    .read_loop = ReadLoop,
};

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE
