#pragma once

#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/prefill_tile.cuh"
#include "kernels/cuda/device/wgmma.cuh"

// The second and third warpgroup of sparse_attention_prefill.cu: probabilities times values.
namespace lodestone::cuda {

// sums *= factor of their row (r, r + 8), unless all factors of the warp are 1.
__device__ inline void RescalePrefill(HalfSums& sums, float factor, float factor8) {
  if (__any_sync(~0u, factor != 1.0f || factor8 != 1.0f)) [[unlikely]] {
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] *= i / 2 % 2 == 0 ? factor : factor8;
  }
}

// A 4 x 4 transpose among the lanes of a quad: lane q gets word q of every lane, in order.
__device__ inline void TransposeQuad(uint32_t (&words)[4]) {
  const bool upper = threadIdx.x % 4 >= 2;
  const bool odd = threadIdx.x % 2 == 1;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(~0u, upper ? words[i] : words[i + 2], 2);
    words[i] = upper ? got : words[i];
    words[i + 2] = upper ? words[i + 2] : got;
  }
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? got : words[i];
    words[i + 1] = odd ? words[i + 1] : got;
  }
}

// This thread's results of one half of the dims, divided, rounded and rotated back, to global
// memory, 64 bytes of 8 rows at a time: not by way of shared memory, which keys wait for.
__device__ inline void StorePrefill(const SparseAttentionArgs& args, const PrefillItem& item,
                                    int half, const HalfSums& sums, const float (&inverse)[2],
                                    const float2* angles) {
  constexpr int kFirstRope = (PrefillTile::kDims / 2 - PrefillTile::kRopeDims) / 8;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int row = static_cast<int>(threadIdx.x % PrefillTile::kGroupThreads / 32) * 16 + lane / 4;
  uint16_t* const out =
      args.out + (int64_t{item.token} * args.num_heads + item.head + row) * PrefillTile::kDims +
      half * (PrefillTile::kDims / 2) + lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < 32; i += 4) {  // blocks of 8 dims
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      uint32_t words[4];
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        const int at = 4 * (i + block) + 2 * j;
        words[block] =
            PackBf16(sums[at / 64][at % 64] * inverse[j], sums[at / 64][at % 64 + 1] * inverse[j]);
        if (i >= kFirstRope && half == 1) {
          words[block] = RotateBack(words[block], angles[(i + block - kFirstRope) * 4 + lane % 4]);
        }
      }
      TransposeQuad(words);
      if (item.head + row + 8 * j < args.num_heads) {
        __stcs(reinterpret_cast<uint4*>(out + j * 8 * PrefillTile::kDims + i * 8),
               uint4{words[0], words[1], words[2], words[3]});
      }
    }
  }
}

// Second and third warpgroup: one half of the output's dims of all items.
__device__ inline void SumPrefill(const SparseAttentionArgs& args, const PrefillShare& share,
                                  PrefillShared& shared) {
  // The same for all lanes, as the compiler sees it.
  const int half =
      __shfl_sync(~0u, static_cast<int>(threadIdx.x / PrefillTile::kGroupThreads), 0) - 1;
  const int row =
      static_cast<int>(threadIdx.x % PrefillTile::kGroupThreads / 32 * 16 + threadIdx.x % 32 / 4);
  RingStage<PrefillTile::kStages> stage;
  RingStage<2> angles;
  int steps = 0;  // of all items
  int number = static_cast<int>(blockIdx.x);
  for (int item = 0; number >= 0; number = PrefillNumberOf(share, ++item, shared)) {
    HalfSums sums;
#pragma unroll
    for (int i = 0; i < 128; ++i) sums[i / 64][i % 64] = 0;
    float factor[2];
    stage.Advance();  // the queries
    for (bool last = false; !last; ++steps) {
      const int turn = steps % 2;
      BarrierWait(&shared.full[stage.index], stage.parity);
      SharedProxyFence();
      last = StepKeys(shared, stage.index) < 0;
      NamedBarrierSync(kStepPassed + turn, kPrefillComputeThreads);
      RescalePrefill(sums, shared.rescale[turn][row], shared.rescale[turn][row + 8]);
      if (last) {
        factor[0] = shared.factor[turn][row];
        factor[1] = shared.factor[turn][row + 8];
      }
      NamedBarrierSync(kStepAllowed + turn, kPrefillComputeThreads);
      AddValues(shared.probs[turn], shared.stages[stage.index][half * PrefillTile::kSlices / 2],
                sums);
      NamedBarrierArrive(kStepSummed + turn, kPrefillComputeThreads);
      if (threadIdx.x % 32 == 0) BarrierArrive(&shared.empty[stage.index], 32);
      stage.Advance();
    }
    if (half == 1) BarrierWait(&shared.angles_full[angles.index], angles.parity);
    StorePrefill(args, PrefillItemOf(args, number), half, sums, factor,
                 shared.angles[angles.index]);
    if (half == 1) BarrierArrive(&shared.angles_empty[angles.index]);
    angles.Advance();
  }
}

}  // namespace lodestone::cuda
