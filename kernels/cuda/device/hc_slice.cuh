#pragma once

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/hyper_connection.h"

// The first half of a boundary, on one slice of the channels: HcPost and the slice's share of the
// sums fn z and z^2. A team of HcTile::kWarps warps does it for some tokens.
namespace lodestone::cuda {

// The channels of one slice.
struct HcSlice {
  int first, count;
};

__device__ inline HcSlice FindSlice(const HcArgs& args, int number) {
  const int first = number * args.channels;
  return {first, max(0, min(args.channels, args.hidden - first))};
}

// One slice of fn and the streams of some tokens: fp32 [kMixes][kStreams][channels] and then bf16
// [tokens][kStreams][channels], behind the other shared memory.
struct HcSliceMemory {
  float* fn;
  uint16_t* z;
  int channels;
  __device__ float* Fn(int row, int stream) const {
    return fn + (row * HcTile::kStreams + stream) * channels;
  }
  __device__ uint16_t* Z(int token, int stream) const {
    return z + (token * HcTile::kStreams + stream) * channels;
  }
  __device__ static HcSliceMemory At(uint8_t* memory, int channels) {
    auto* const fn = reinterpret_cast<float*>(memory);
    constexpr int kRowsOfFn = HcTile::kMixes * HcTile::kStreams;
    return {fn, reinterpret_cast<uint16_t*>(fn + kRowsOfFn * channels), channels};
  }
  static int64_t Bytes(int64_t channels, int tokens) {
    return (2 * HcTile::kMixes + tokens) * HcTile::kStreams * channels * 2;
  }
};

// Starts the copy of the slice of fn, a row of a stream at a time. By all warps of the block, of
// which each takes about 60 cycles a copy; the barrier is initialised.
__device__ inline void StartCopyOfFn(const HcArgs& args, const HcSlice& slice,
                                     const HcSliceMemory& memory, uint64_t* barrier) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kCopies = HcTile::kMixes * kStreams;
  const int thread = static_cast<int>(threadIdx.x);
  const auto bytes = static_cast<uint32_t>(slice.count) * 4;
  if (thread == 0) BarrierArriveExpect(barrier, kCopies * bytes);
  if (bytes == 0) return;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  for (int i = thread % 32 * num_warps + thread / 32; i < kCopies;
       i += static_cast<int>(blockDim.x)) {
    const float* const from =
        args.fn + static_cast<int64_t>(i) * args.hidden + slice.first;  // row i / 4, stream i % 4
    CopyBulk(memory.Fn(i / kStreams, i % kStreams), from, bytes, barrier);
  }
}

// kVector bf16 numbers, loaded and stored at once.
template <int kVector>
struct alignas(2 * kVector) HcPacked {
  uint32_t word[kVector / 2];
};

// HcPost of kVector channels of a token, whose streams are in z.
template <int kVector>
__device__ void UpdateVector(const HcArgs& args, int64_t token, const HcPacked<kVector>& y,
                             HcPacked<kVector> (&z)[HcTile::kStreams]) {
  constexpr int kStreams = HcTile::kStreams;
  const auto load = [](const float* from, int i) {
    return reinterpret_cast<const float4*>(from)[i];
  };
  const float4 post = load(args.old_post + token * args.old_post_stride, 0);
  float4 comb[kStreams];  // [j] of stream j, to streams x, y, z, w
#pragma unroll
  for (int j = 0; j < kStreams; ++j)
    comb[j] = load(args.old_comb + token * args.old_comb_stride, j);
#pragma unroll
  for (int word = 0; word < kVector / 2; ++word) {
    float low[kStreams], high[kStreams], y_low, y_high;
    UnpackBf16(y.word[word], y_low, y_high);
#pragma unroll
    for (int j = 0; j < kStreams; ++j) UnpackBf16(z[j].word[word], low[j], high[j]);
    const auto mix = [&](float value, const float(&of)[kStreams], auto weight) {
      float out = weight(post) * value;
#pragma unroll
      for (int j = 0; j < kStreams; ++j) out = fmaf(weight(comb[j]), of[j], out);
      return out;
    };
    const auto both = [&](auto weight) {
      return PackBf16(mix(y_low, low, weight), mix(y_high, high, weight));
    };
    z[0].word[word] = both([](const float4& of) { return of.x; });
    z[1].word[word] = both([](const float4& of) { return of.y; });
    z[2].word[word] = both([](const float4& of) { return of.z; });
    z[3].word[word] = both([](const float4& of) { return of.w; });
  }
}

// HcPost of kTokens tokens by the team (the first threads of a block): the streams of the slice, to
// memory.z and, where they changed, back. Tokens behind the last have zeros. Once a token's are
// read, the next kernel may start.
template <int kTokens>
__device__ void UpdateStreams(const HcArgs& args, int first_token, const HcSlice& slice,
                              const HcSliceMemory& memory) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kVector = kTokens > 4 ? 8 : 4;  // so that a lane has one vector at hidden 4,096
  constexpr int kTokenWarps = 8 / kVector;
  constexpr int kStep = 32 * kTokenWarps * kVector;
  using Packed = HcPacked<kVector>;
  const int rank = static_cast<int>(threadIdx.x);
  for (int t = rank / (32 * kTokenWarps); t < kTokens; t += HcTile::kWarps / kTokenWarps) {
    const int64_t token = first_token + t;
    for (int channel = rank % (32 * kTokenWarps) * kVector; channel < slice.count;
         channel += kStep) {
      Packed z[kStreams] = {};
      if (token < args.num_tokens) {
        uint16_t* const streams = args.streams + token * args.token_stride + slice.first + channel;
        Packed y = {};
        if (args.y != nullptr) {
          y = *reinterpret_cast<const Packed*>(args.y + token * args.y_stride + slice.first +
                                               channel);
        }
#pragma unroll
        for (int k = 0; k < kStreams; ++k) {
          z[k] = *reinterpret_cast<const Packed*>(streams + k * args.stream_stride);
        }
        if (args.y != nullptr) {
          UpdateVector<kVector>(args, token, y, z);
          AllowNextKernel();
#pragma unroll
          for (int k = 0; k < kStreams; ++k) {
            *reinterpret_cast<Packed*>(streams + k * args.stream_stride) = z[k];
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kStreams; ++k) {
        *reinterpret_cast<Packed*>(memory.Z(t, k) + channel) = z[k];
      }
    }
  }
}

// Sums of a slice, by pair of streams; those of a pair in the order of HcTile::PlaceOf.
template <int kTokens>
struct HcStreamSums {
  static constexpr int kVectors = HcTile::kPaddedSums / 4;
  float4 value[HcTile::kStreamPairs][kTokens][kVectors];

  __device__ float* Of(int pair, int token) { return reinterpret_cast<float*>(value[pair][token]); }
  // Four sums over all streams.
  __device__ float4 Add(int token, int vector) const {
    const float4& first = value[0][token][vector];
    const float4& second = value[1][token][vector];
    return {first.x + second.x, first.y + second.y, first.z + second.z, first.w + second.w};
  }
};

__device__ inline float Dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// fn z and z^2 of the slice. A warp of the team has kRows rows of fn and two of the streams; lanes
// have four channels at a time.
template <int kTokens>
__device__ void MultiplySlice(const HcSliceMemory& memory, int count, HcStreamSums<kTokens>& sums) {
  constexpr int kRows = HcTile::kRows;
  constexpr int kRowGroups = HcTile::kRowGroups;
  constexpr int kSquares = (kTokens + kRowGroups - 1) / kRowGroups;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int group = warp % kRowGroups;
  const int pair = warp / kRowGroups;
  constexpr int kProducts = kTokens * kRows;
  float acc[kProducts + kSquares] = {};
  float squares[kSquares] = {};  // of tokens `group`, `group` + kRowGroups, ...
#pragma unroll 1
  for (int stream = 2 * pair; stream < 2 * pair + 2; ++stream) {
#pragma unroll 1
    for (int channel = 4 * lane; channel < count; channel += 128) {
      float4 z[kTokens];
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const uint2 packed = *reinterpret_cast<const uint2*>(memory.Z(t, stream) + channel);
        UnpackBf16(packed.x, z[t].x, z[t].y);
        UnpackBf16(packed.y, z[t].z, z[t].w);
        if (t % kRowGroups == group) {
          squares[t / kRowGroups] = Dot(z[t], z[t], squares[t / kRowGroups]);
        }
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 factor =
            *reinterpret_cast<const float4*>(memory.Fn(group * kRows + r, stream) + channel);
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          acc[t * kRows + r] = Dot(factor, z[t], acc[t * kRows + r]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kSquares; ++i) acc[kProducts + i] = squares[i];
  int index = 0;
  int left = kProducts + kSquares;
  const float sum = WarpSums<kProducts + kSquares>(acc, index, left);
  const bool is_product = index < kProducts;
  const int token = is_product ? index / kRows : group + (index - kProducts) * kRowGroups;
  const int place = is_product ? HcTile::PlaceOf(group * kRows + index % kRows) : HcTile::kSquares;
  if (left > 0 && token < kTokens) sums.Of(pair, token)[place] = sum;
}

}  // namespace lodestone::cuda
