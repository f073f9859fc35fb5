#pragma once

#include "kernels/cpu/simd_table.h"

// The functions behind SimdTable, one set per instruction set. Only for *_simd.cc.
namespace lodestone::LODESTONE_SIMD_NAMESPACE {

void Gemm(const cpu::GemmArgs& args);
// The same for kFp8 and kFp4 weights.
void GemmQuantised(const cpu::GemmArgs& args);
float FmaLoop(int64_t iterations);
float ReadLoop(const float* data, int64_t n);

void Widen(const void* x, bool bf16, int64_t n, float* out);
void Narrow(const float* x, int64_t n, bool bf16, void* out);
float SumSquares(const void* x, bool bf16, int64_t n);
void RmsNorm(const void* x, const uint16_t* weight, float eps, int64_t n, bool bf16, void* out);
void QueryNorm(void* x, float eps, int64_t n, bool bf16);
void Rotate(void* x, const float* cos, const float* sin, int64_t n, bool bf16);
void Hadamard(void* x, int64_t n, float factor, bool bf16);
void Swiglu(const float* gate, const float* up, float limit, float weight, int64_t n, bool bf16,
            void* out);
void AddRows(const void* const* rows, int64_t num_rows, int64_t n, bool bf16, void* out);

void CollapseStreams(const void* streams, const float* pre, int64_t num_streams, int64_t n,
                     bool bf16, void* out);
void HcMix(const cpu::HcMixArgs& args);
void HcPost(const void* x, const float* post, const float* comb, int64_t num_streams, int64_t n,
            bool bf16, void* streams);

void Pool(const cpu::PoolArgs& args);
void LoadKeyPanel(const cpu::KeyPanelArgs& args);
void ScorePanel(const cpu::ScoreArgs& args);
void Attend(const cpu::AttendArgs& args);

}  // namespace lodestone::LODESTONE_SIMD_NAMESPACE
