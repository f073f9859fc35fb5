#pragma once

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/hc_slice.cuh"
#include "kernels/cuda/device/hyper_connection.cuh"
#include "kernels/cuda/hyper_connection.h"

// HcPost within a boundary, on one slice of the channels: what a team of HcTile::kWarps warps does
// first.
namespace lodestone::cuda {

// kVector bf16 numbers, loaded and stored at once.
template <int kVector>
struct alignas(2 * kVector) HcPacked {
  uint32_t word[kVector / 2];
};

// Where a lane finds what HcPost takes for some channels of a token.
struct HcPostPlace {
  uint16_t* streams;
  const uint16_t* y;
  const float4* post;
  const float4* comb;  // [j] of stream j, to streams x, y, z, w

  __device__ static HcPostPlace Find(const HcArgs& args, int64_t token, int channel) {
    return {args.streams + token * args.token_stride + channel,
            args.y + token * args.y_stride + channel,
            reinterpret_cast<const float4*>(args.old_post + token * args.old_post_stride),
            reinterpret_cast<const float4*>(args.old_comb + token * args.old_comb_stride)};
  }
  // Keeps the compiler from finding it later, behind the wait for the previous kernel.
  __device__ void FindNow() { asm volatile("" : "+l"(streams), "+l"(y), "+l"(post), "+l"(comb)); }
};

// HcPost of kVector channels of a token, whose streams are in z.
template <int kVector>
__device__ void UpdateVector(const float4& post, const float4 (&comb)[HcTile::kStreams],
                             const HcPacked<kVector>& y, HcPacked<kVector> (&z)[HcTile::kStreams]) {
  constexpr int kStreams = HcTile::kStreams;
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

// The same with post and comb of the token from memory.
template <int kVector>
__device__ void UpdateVector(const HcArgs& args, int64_t token, const HcPacked<kVector>& y,
                             HcPacked<kVector> (&z)[HcTile::kStreams]) {
  constexpr int kStreams = HcTile::kStreams;
  const auto load = [](const float* from, int i) {
    return reinterpret_cast<const float4*>(from)[i];
  };
  const float4 post = load(args.old_post + token * args.old_post_stride, 0);
  float4 comb[kStreams];
#pragma unroll
  for (int j = 0; j < kStreams; ++j) {
    comb[j] = load(args.old_comb + token * args.old_comb_stride, j);
  }
  UpdateVector<kVector>(post, comb, y, z);
}

// HcPost of kTokens tokens by a team: the streams of the slice go to memory.z and, where they
// changed, back. Tokens behind the last have zeros. Once a token's are read, the next kernel may
// start.
template <int kTokens>
__device__ void UpdateStreams(const HcArgs& args, int first_token, const HcSlice& slice,
                              const HcSliceMemory& memory) {
  constexpr int kStreams = HcTile::kStreams;
  constexpr int kVector = 4;  // so that a lane has one vector at hidden 4,096
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

// What HcPost takes for kVector channels of a token.
template <int kVector>
struct HcPostInputs {
  static constexpr int kStreams = HcTile::kStreams;
  HcPacked<kVector> z[kStreams], y;
  float4 post, comb[kStreams];

  // Also z, which is what the streams become.
  __device__ void Update() { UpdateVector<kVector>(post, comb, y, z); }
};

// UpdateStreams by the threads of a team from number kFirstThread on, kVector channels a thread and
// turn, in steps of which the first comes before the kernel waits: find, load, run. Takes more
// registers than a kernel of many turns has for it.
template <int kTokens, int kVector, int kFirstThread = 0>
class HcStreamUpdate {
 public:
  // Finds what a thread reads first. `first_row`: of the first token in memory.z. May be called
  // before the kernel waits.
  __device__ HcStreamUpdate(const HcArgs& args, int first_token, int first_row,
                            const HcSlice& slice)
      : args_(args), slice_(slice), first_token_(first_token + first_row), first_row_(first_row) {
    if (kTokens == 0) return;
    if (IsLeft()) Find();
    place_.FindNow();
  }

  // Starts the first loads.
  __device__ void Load() {
    if (!IsLeft()) return;
    if (!Exists()) {
#pragma unroll
      for (auto& z : inputs_.z) z = {};
      return;
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) inputs_.z[k] = *Stream(k);
    if (args_.y == nullptr) return;
    inputs_.y = *reinterpret_cast<const Packed*>(place_.y);
    inputs_.post = *place_.post;
#pragma unroll
    for (int j = 0; j < kStreams; ++j) inputs_.comb[j] = place_.comb[j];
  }

  // After Load. Once a token's streams are read, the next kernel may start.
  __device__ void Run(const HcSliceMemory& memory) {
    while (IsLeft()) {
      Store(memory);
      channel_ += kTokenThreads * kVector;
      if (channel_ >= slice_.count) {
        channel_ = FirstChannel();
        t_ += (HcTile::kTeamThreads - kFirstThread) / kTokenThreads;
      }
      if (!IsLeft()) return;
      Find();
      Load();
    }
  }

 private:
  static constexpr int kStreams = HcTile::kStreams;
  static constexpr int kTokenThreads = 256 / kVector;  // so that one has one step at hidden 4,096
  using Packed = HcPacked<kVector>;

  __device__ static int Rank() { return static_cast<int>(threadIdx.x) - kFirstThread; }
  __device__ static int FirstChannel() { return Rank() % kTokenThreads * kVector; }
  __device__ bool IsLeft() const { return Rank() >= 0 && t_ < kTokens && channel_ < slice_.count; }
  __device__ bool Exists() const { return first_token_ + t_ < args_.num_tokens; }
  __device__ Packed* Stream(int k) const {
    return reinterpret_cast<Packed*>(place_.streams + k * args_.stream_stride);
  }
  __device__ void Find() {
    place_ = HcPostPlace::Find(args_, first_token_ + t_, slice_.first + channel_);
  }

  __device__ void Store(const HcSliceMemory& memory) {
    if (Exists() && args_.y != nullptr) {
      inputs_.Update();
      AllowNextKernel();
#pragma unroll
      for (int k = 0; k < kStreams; ++k) *Stream(k) = inputs_.z[k];
    }
#pragma unroll
    for (int k = 0; k < kStreams; ++k) {
      *reinterpret_cast<Packed*>(memory.Z(first_row_ + t_, k) + channel_) = inputs_.z[k];
    }
  }

  const HcArgs& args_;
  const HcSlice slice_;
  const int first_token_, first_row_;
  int t_ = Rank() / kTokenThreads;  // of the next turn, behind the first token
  int channel_ = FirstChannel();    // and its channel of the slice
  HcPostPlace place_ = {};
  HcPostInputs<kVector> inputs_;
};

// HcPost of a cluster's tokens by a team: the first step before the kernel waits, the others after
// it. One or two tokens have more threads each; the fifth is for half of the threads, beside one of
// the others.
template <int kTokens>
class HcClusterUpdate {
 public:
  __device__ HcClusterUpdate(const HcArgs& args, int first_token, const HcSlice& slice)
      : most_(args, first_token, 0, slice), last_(args, first_token, kMost, slice) {}
  __device__ void Run(const HcSliceMemory& memory) {
    most_.Load();
    last_.Load();
    most_.Run(memory);
    last_.Run(memory);
  }

 private:
  static constexpr int kMost = kTokens > 4 ? 4 : kTokens;
  HcStreamUpdate<kMost, kTokens <= 2 ? 2 : 4> most_;
  HcStreamUpdate<kTokens - kMost, 2, HcTile::kTeamThreads / 2> last_;
};

}  // namespace lodestone::cuda
