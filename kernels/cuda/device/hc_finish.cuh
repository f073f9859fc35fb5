#pragma once

#include "kernels/cuda/device/hc_slice.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/device/sinkhorn.cuh"

// The second half of a boundary, from the sums of all slices: post and comb of a token, and its x.
// Each by one warp.
namespace lodestone::cuda {

// base and scale for the sum that a lane has: mix * scale + base is what it is for.
struct HcMixScale {
  float base, scale;
};

// Weights, so it may be called before the kernel waits.
__device__ inline HcMixScale FindScale(const HcArgs& args) {
  constexpr int kStreams = HcTile::kStreams;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane - (lane > HcTile::kSquares);
  if (lane == HcTile::kSquares || row >= HcTile::kMixes) return {0, 0};
  return {args.base[row], args.scale[row < kStreams ? 0 : row < 2 * kStreams ? 1 : 2]};
}

// mixes: (fn z)[row] * rsqrt(mean(z^2) + eps), lane HcTile::PlaceOf(row), from the sums of the
// slices in order; Partial(slice) are those of one. Lanes from kCount on have none.
template <int kCount, typename Partial>
__device__ float FindMix(const HcArgs& args, const Partial& partial) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float sum = 0;
  if (lane < kCount) {
#pragma unroll
    for (int slice = 0; slice < HcTile::kSlices; ++slice) sum += partial(slice)[lane];
  }
  const float squares = __shfl_sync(~0u, sum, HcTile::kSquares);
  constexpr float kStreamsInverse = 1.0f / HcTile::kStreams;
  return sum * rsqrtf(fmaf(squares, args.hidden_inverse * kStreamsInverse, args.rms_eps));
}

// post of one token.
__device__ inline void StorePost(const HcArgs& args, int64_t token, float mix,
                                 const HcMixScale& own) {
  constexpr int kPost = HcTile::PlaceOf(HcTile::kStreams);
  constexpr int kComb = HcTile::PlaceOf(2 * HcTile::kStreams);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kPost || lane >= kComb) return;
  args.post[token * args.post_stride + lane - kPost] = 2.0f * Sigmoid(mix * own.scale + own.base);
}

// comb of one token.
__device__ inline void StoreComb(const HcArgs& args, int64_t token, float mix,
                                 const HcMixScale& own) {
  constexpr int kComb = HcTile::PlaceOf(2 * HcTile::kStreams);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  Sinkhorn sinkhorn;
  const float comb = sinkhorn.Run(__shfl_down_sync(~0u, mix * own.scale + own.base, kComb),
                                  args.hc_eps, args.sinkhorn_iters);
  if (lane < HcTile::kStreams * HcTile::kStreams) {
    args.comb[token * args.comb_stride + lane] = comb;
  }
}

// u of one token and slice, kept by the lanes of a warp.
struct HcCollapsed {
  float u[HcTile::kMaxChunks][HcTile::kChunk];
};

// A lane's chunk of every stream.
struct HcChunk {
  uint4 z[HcTile::kStreams];
};

// Stream m of the slice is at `streams` + m * stride. Zeros behind the slice's channels.
__device__ inline HcChunk LoadChunk(const uint16_t* streams, int64_t stride, int count,
                                    int channel) {
  HcChunk chunk = {};
  if (channel >= count) return chunk;
#pragma unroll
  for (int m = 0; m < HcTile::kStreams; ++m) {
    chunk.z[m] = *reinterpret_cast<const uint4*>(streams + m * stride + channel);
  }
  return chunk;
}

// A lane's first chunk: the streams do not depend on the mix, so this comes before the sums do.
__device__ inline HcChunk LoadFirstChunk(const uint16_t* streams, int64_t stride, int count) {
  return LoadChunk(streams, stride, count, static_cast<int>(threadIdx.x) % 32 * HcTile::kChunk);
}

// u = round(sum_m pre[m] * streams[m]); returns sum u^2. `streams` and `stride` as in LoadChunk.
__device__ inline float CollapseSlice(const HcArgs& args, float mix, const HcMixScale& own,
                                      int count, const uint16_t* streams, int64_t stride,
                                      const HcChunk& first, HcCollapsed& collapsed) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kChunk = HcTile::kChunk;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float weight = Sigmoid(mix * own.scale + own.base) + args.hc_eps;
  float pre[kStreams];
#pragma unroll
  for (int m = 0; m < kStreams; ++m) pre[m] = __shfl_sync(~0u, weight, m);
  float squares = 0;
#pragma unroll
  for (int chunk = 0; chunk < HcTile::kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + lane) * kChunk;
    if (channel >= count) continue;
    const HcChunk packed = chunk == 0 ? first : LoadChunk(streams, stride, count, channel);
    float sums[kChunk] = {};
#pragma unroll
    for (int m = 0; m < kStreams; ++m) {
      float z[kChunk];
      UnpackBf16(packed.z[m], z);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sums[i] = fmaf(pre[m], z[i], sums[i]);
    }
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float u = RoundToBf16(sums[i]);
      collapsed.u[chunk][i] = u;
      squares = fmaf(u, u, squares);
    }
  }
  return WarpSum(squares);
}

// The norm's weights of a slice, kept by the lanes of a warp. May be loaded before the kernel
// waits.
struct HcNormWeights {
  uint4 chunk[HcTile::kMaxChunks];
};

__device__ inline HcNormWeights LoadNormWeights(const HcArgs& args, const HcSlice& slice) {
  HcNormWeights weights = {};
#pragma unroll
  for (int chunk = 0; chunk < HcTile::kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + static_cast<int>(threadIdx.x) % 32) * HcTile::kChunk;
    if (channel >= slice.count) continue;
    weights.chunk[chunk] =
        *reinterpret_cast<const uint4*>(args.norm_weight + slice.first + channel);
  }
  return weights;
}

// x = round(norm_weight * u * rsqrt(mean(u^2) + eps)).
__device__ inline void StoreNormed(const HcArgs& args, int64_t token, const HcSlice& slice,
                                   float squares, const HcNormWeights& weights,
                                   const HcCollapsed& collapsed) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float factor = rsqrtf(fmaf(squares, args.hidden_inverse, args.rms_eps));
#pragma unroll
  for (int chunk = 0; chunk < HcTile::kMaxChunks; ++chunk) {
    const int channel = (chunk * 32 + lane) * HcTile::kChunk;
    if (channel >= slice.count) continue;
    const uint4& packed = weights.chunk[chunk];
    const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low, high;
      UnpackBf16(words[i], low, high);
      out[i] = PackBf16(low * (collapsed.u[chunk][2 * i] * factor),
                        high * (collapsed.u[chunk][2 * i + 1] * factor));
    }
    *reinterpret_cast<uint4*>(args.x + token * args.x_stride + slice.first + channel) = {
        out[0], out[1], out[2], out[3]};
  }
}

}  // namespace lodestone::cuda
