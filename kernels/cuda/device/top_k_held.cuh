#pragma once

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/top_k_filter.cuh"
#include "kernels/cuda/device/top_k_sample.cuh"

// A row of kernels/cuda/top_k.cu that one block holds in shared memory.
namespace lodestone::cuda::top_k {

// Each warp has a piece of the row, in two halves that the copy engine brings, so that all of it is
// on its way at one time and no thread spends instructions on it. Before, a sample is loaded.
struct HeldRow {
  static constexpr int kSampleSlots = HeldSample::kSlots;
  static constexpr int kOwn = 8;           // float4 next to each other that a lane has of a half
  static constexpr int kHalf = 32 * kOwn;  // float4
  struct Memory {
    float4 fours[Tile::kWarps][2 * kHalf];
    uint64_t full[Tile::kWarps][2];  // barriers
  };
  static constexpr int kSharedBytes = sizeof(Memory);
  RowPart<kSampleSlots> part;
  Memory& memory;
  int lane;
  int warp;
  int first;   // float4 of the piece
  int fours;   // of the piece, those that are complete
  int length;  // scores of the piece
  float4 sample[kSampleSlots];
  float tail;  // of the last warp's first lanes: the scores beyond the last float4

  __device__ HeldRow(const TopKArgs& args, int64_t row, int visible, const OneBlock& team,
                     void* shared)
      : part(args, row, visible, team),
        memory(*static_cast<Memory*>(shared)),
        lane(static_cast<int>(threadIdx.x) % 32),
        warp(static_cast<int>(threadIdx.x) / 32),
        first(min(part.first - lane, part.fours)),
        fours(max(part.end - first, 0)),
        length(part.last ? visible - 4 * first : 4 * fours) {
    if (lane != 0) return;
    BarrierInit(&memory.full[warp][0], 1);
    BarrierInit(&memory.full[warp][1], 1);
    BarrierInitFence();
  }
  __device__ const float* scores() const {
    return reinterpret_cast<const float*>(memory.fours[warp]);
  }

  // The sample: eight lines of the cache, spread over the piece, or all of a short piece.
  __device__ int SampleAt(int slot) const {
    const int line = lane / 8 + 4 * slot;
    const int lines = part.length / 8;
    return 8 * (lines <= 8 ? line : line * lines / 8) + lane % 8;
  }
  __device__ void Load() {
    const float* const piece = part.scores + 4 * int64_t{first};
#pragma unroll
    for (int i = 0; i < kSampleSlots; ++i) {
      const int at = SampleAt(i);
      sample[i] = at < fours ? __ldg(reinterpret_cast<const float4*>(piece) + at) : NoScores();
    }
    tail = 4 * fours + lane < length ? piece[4 * fours + lane] : 0.0f;
    if (lane == 0) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int count = min(max(fours - half * kHalf, 0), kHalf);
        const uint32_t bytes = 16 * static_cast<uint32_t>(count);
        BarrierArriveExpect(&memory.full[warp][half], bytes);
        if (count > 0) {
          CopyBulk(memory.fours[warp] + half * kHalf, piece + 4 * half * kHalf, bytes,
                   &memory.full[warp][half]);
        }
      }
    }
    __syncwarp();
  }

  __device__ void StoreTail() const {
    if (4 * fours + lane < length) {
      reinterpret_cast<float*>(memory.fours[warp])[4 * fours + lane] = tail;
    }
    __syncwarp();
  }
  // Bit 4 i + c: component c of this lane's float4 i of a half is of the row.
  __device__ uint32_t Within(int half) const {
    const int count = min(max(length - 4 * (half * kHalf + kOwn * lane), 0), 32);
    return count == 0 ? 0 : ~0u >> (32 - count);
  }
  // The same of what reaches the bound. REQUIRES: `bound` is above -inf.
  __device__ uint32_t Reaching(int half, float bound) const {
    const float4* const own = memory.fours[warp] + half * kHalf + kOwn * lane;
    BarrierWait(&memory.full[warp][half], 0);
    const float below = Below(bound);
    // Lanes next to each other begin with different ones of their float4, so that banks differ.
    uint32_t bytes[kOwn / 2] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float4 four = LoadSharedFloats(SharedAddress(own + ((lane + (i ^ 1)) & 7)));
      // The sign of the difference is the next bit.
      uint32_t& byte = bytes[i / 2];
      byte = __funnelshift_l(__float_as_uint(below - four.w), byte, 1);
      byte = __funnelshift_l(__float_as_uint(below - four.z), byte, 1);
      byte = __funnelshift_l(__float_as_uint(below - four.y), byte, 1);
      byte = __funnelshift_l(__float_as_uint(below - four.x), byte, 1);
    }
    const uint32_t bits = bytes[0] + (bytes[1] << 8) + (bytes[2] << 16) + (bytes[3] << 24);
    return __funnelshift_l(bits, bits, 4 * lane) & Within(half);
  }
  // The same of what is above a key, and of what equals it.
  struct Masks {
    uint32_t above;
    uint32_t equal;
  };
  __device__ Masks Compare(int half, uint32_t key) const {
    const float4* const own = memory.fours[warp] + half * kHalf + kOwn * lane;
    BarrierWait(&memory.full[warp][half], 0);
    const bool nan = key == kNanKey;
    const float score = nan ? -kInfinity : ScoreOf(key);
    uint32_t above = 0;
    uint32_t reach = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const float4 four = LoadSharedFloats(SharedAddress(own + ((lane + i) & 7)));
      const float scores[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (scores[j] > score) above |= 1u << (4 * i + j);
        if (scores[j] >= score) reach |= 1u << (4 * i + j);
      }
    }
    const uint32_t within = Within(half);
    above = __funnelshift_l(above, above, 4 * lane) & within;
    reach = __funnelshift_l(reach, reach, 4 * lane) & within;
    return nan ? Masks{reach, within & ~reach} : Masks{above, reach & ~above};
  }

  // Lists this warp's scores that reach the bound, in ascending order: their number.
  // REQUIRES: `bound` is above -inf.
  __device__ int Filter(float bound, TopKShared& shared) const {
    StoreTail();
    uint32_t words[2];
    words[0] = Reaching(0, bound);
    words[1] = Reaching(1, bound);
    const uint32_t mine = __popc(words[0]) | __popc(words[1]) << 16;
    const uint32_t upto = ScanWarp(mine);
    const uint32_t all = __shfl_sync(~0u, upto, 31);
    const uint32_t before = upto - mine;
    const uint32_t list = SharedAddress(shared.lists[warp]);
    uint32_t places[2] = {list + 2 * (before & 0xffff),
                          list + 2 * ((all & 0xffff) + (before >> 16))};
    const auto append = [&](int half) {
      uint32_t& word = words[half];
      const uint32_t rest = word & (word - 1);
      const int bit = 31 - __clz(static_cast<int>(word ^ rest));
      StoreSharedIf(word != 0, places[half],
                    static_cast<uint16_t>(4 * (half * kHalf + kOwn * lane) + bit));
      word = rest;
      places[half] += 2;
    };
#pragma unroll
    for (int i = 0; i < 3; ++i) {  // most lanes have no more
      append(0);
      append(1);
    }
#pragma unroll 1
    while ((words[0] | words[1]) != 0) {
      append(0);
      append(1);
    }
    __syncwarp();
    return static_cast<int>((all & 0xffff) + (all >> 16));
  }

  // f(score, entry) of all of this warp.
  template <typename F>
  __device__ void ForEach(const F& f) const {
#pragma unroll 4
    for (int at = lane; at < fours; at += 32) {
      const float4 four = LoadSharedFloats(SharedAddress(&memory.fours[warp][at]));
      const int entry = 4 * (first + at);
      f(four.x, entry);
      f(four.y, entry + 1);
      f(four.z, entry + 2);
      f(four.w, entry + 3);
    }
    const int at = 4 * fours + lane;
    if (at < length) f(scores()[at], 4 * first + at);
  }
};

}  // namespace lodestone::cuda::top_k
