#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/launchers.h"

// The keys of one token (SparseAttentionParams): window positions ascending, then entries.
namespace lodestone::cuda {

struct KeyRow {
  const uint8_t* payload;
  const uint8_t* scale;  // kFp8, except for the batch's own latents, which are bf16
  bool own;              // a latent of this batch, not yet stored in the ring
};

struct TokenKeys {
  int32_t position;
  int32_t seq;
  int32_t first_token;     // of the sequence in this batch; negative if it begins before token 0
  int32_t first_position;  // its position
  int32_t slot;
  int num_window;
  int num_entries;
  int first_row;  // of the ring: where the window's first position is, were it there
  __device__ int size() const { return num_window + num_entries; }
};

// Where a token's sequence may be looked up before its number is known: in the batch of one token a
// sequence the token's own number is likely, and its rows exist.
__device__ inline int32_t LikelySequence(const SparseAttentionArgs& args, int64_t token) {
  return static_cast<int32_t>(args.old_rows ? args.first_token + token : 0);
}

// What KeysOf needs, read at once for the likely sequence: nothing waits for it here.
struct TokenPlace {
  int32_t position;
  int32_t seq;
  int32_t first;  // of the likely sequence
  int32_t slot;   // of the likely sequence
};
__device__ inline TokenPlace LoadPlace(const SparseAttentionArgs& args, int64_t token) {
  const int32_t likely = LikelySequence(args, token);
  TokenPlace place;
  place.first = args.seq_first[likely];
  place.slot = args.seq_slot[likely];
  place.position = args.positions[token];
  place.seq = args.token_seq[token];
  return place;
}
// Of one token; `num_entries` is 0 under ratio 4, where top_entries must be counted.
__device__ inline TokenKeys KeysOf(const SparseAttentionArgs& args, int64_t token,
                                   const TokenPlace& place) {
  TokenKeys keys;
  int32_t first = place.first;
  keys.slot = place.slot;
  keys.position = place.position;
  keys.seq = place.seq;
  if (keys.seq != LikelySequence(args, token)) {
    first = args.seq_first[keys.seq];
    keys.slot = args.seq_slot[keys.seq];
  }
  keys.first_token = first - static_cast<int32_t>(args.first_token);
  keys.first_position = keys.position - (static_cast<int32_t>(token) - keys.first_token);
  keys.num_window = min(static_cast<int>(args.window), keys.position + 1);
  keys.num_entries = args.ratio == 128 ? (keys.position + 1) / 128 : 0;
  keys.first_row = (keys.position - keys.num_window + 1) % static_cast<int>(args.window);
  return keys;
}
__device__ inline TokenKeys FindKeys(const SparseAttentionArgs& args, int64_t token) {
  return KeysOf(args, token, LoadPlace(args, token));
}

// Key `index` < num_window.
__device__ inline KeyRow FindWindowRow(const SparseAttentionArgs& args, const TokenKeys& keys,
                                       int index) {
  const int position = keys.position - keys.num_window + 1 + index;
  if (position >= keys.first_position) {
    const int64_t own = keys.first_token + position - keys.first_position;
    return {reinterpret_cast<const uint8_t*>(args.latents + own * args.head_dim), nullptr, true};
  }
  const RowBytes bytes = LatentRowBytes(args.format, args.head_dim, args.rope_dims);
  const int64_t row = position % static_cast<int>(args.window);
  return {args.ring.payload + keys.slot * args.ring.payload_block_stride + row * bytes.payload,
          args.ring.scale + keys.slot * args.ring.scale_block_stride + row * bytes.scale, false};
}

__device__ inline KeyRow FindEntryRow(const SparseAttentionArgs& args, const TokenKeys& keys,
                                      int entry) {
  const RowBytes bytes = LatentRowBytes(args.format, args.head_dim, args.rope_dims);
  const int per_page = kPageTokens / static_cast<int>(args.ratio);
  const int64_t page = args.block_table[keys.seq * args.max_pages + entry / per_page];
  const int64_t row = entry % per_page;
  return {args.entries.payload + page * args.entries.payload_block_stride + row * bytes.payload,
          args.entries.scale + page * args.entries.scale_block_stride + row * bytes.scale, false};
}

// The same for latents of bf16 x 512, without divisions: where rows are found one by one between
// loads of keys, these cost more than the loads.
inline constexpr int kLatentBytes = 1024;
__device__ inline const uint8_t* FindWindowLatent(const SparseAttentionArgs& args,
                                                  const TokenKeys& keys, int index) {
  const int behind = index + keys.position - keys.num_window + 1 - keys.first_position;
  if (behind >= 0) {
    return reinterpret_cast<const uint8_t*>(args.latents) +
           int64_t{keys.first_token + behind} * kLatentBytes;
  }
  const int row = keys.first_row + index;
  const int window = static_cast<int>(args.window);
  return args.ring.payload + keys.slot * args.ring.payload_block_stride +
         (row < window ? row : row - window) * kLatentBytes;
}
// Bytes from entries.payload. `pages` is the sequence's row of the block table.
__device__ inline int64_t EntryLatentOffset(const SparseAttentionArgs& args, const int32_t* pages,
                                            int entry) {
  const int shift = args.ratio == 4 ? 6 : 1;  // of 64 or 2 entries a page
  return pages[entry >> shift] * args.entries.payload_block_stride +
         (entry & ((1 << shift) - 1)) * kLatentBytes;
}

// Brings the part of the block table that names a token's pages into the L1 cache. By kThreads
// threads.
template <int kThreads>
__device__ inline void TouchPages(const SparseAttentionArgs& args, const TokenKeys& keys) {
  constexpr int kPagesPerLine = 128 / sizeof(int32_t);
  const int32_t* const pages = args.block_table + keys.seq * args.max_pages;
  const int num_pages = keys.position / static_cast<int>(kPageTokens) + 1;
  for (int i = static_cast<int>(threadIdx.x) % kThreads * kPagesPerLine; i < num_pages;
       i += kThreads * kPagesPerLine) {
    int32_t page;
    asm volatile("ld.global.ca.b32 %0, [%1];" : "=r"(page) : "l"(pages + i));
  }
}

// 16 bytes of each of kSlices slices of a latent, of 64 dims, to a row tile in shared memory, where
// slices lie 64 rows of 128 bytes apart. All of a row is asked for at once; to have the L2 cache
// fetch 256 bytes at a time on top of that made prefill 0.35 % slower.
inline constexpr int kLatentSlices = 8;
inline constexpr int kLatentSliceBytes = 64 * 128;
template <int kSlices = kLatentSlices, int kSlice = 0>
__device__ inline void CopyLatentSlices(const uint8_t* from, uint32_t to, uint64_t policy) {
  if constexpr (kSlice < kSlices) {
    CopyAsync16<kSlice * kLatentSliceBytes, kSlice * 128>(to, from, policy);
    CopyLatentSlices<kSlices, kSlice + 1>(from, to, policy);
  }
}

// cos and sin of pair `pair` of the rotary dims at `position`; the angle is the fp32 product.
__device__ inline float2 RopeAngle(int32_t position, float freq) {
  float2 angle;
  sincosf(__fmul_rn(static_cast<float>(position), freq), &angle.y, &angle.x);
  return angle;
}

// (x, y) rotated by minus the angle, without fused operations.
__device__ inline float2 RotateBack(float x, float y, float2 angle) {
  return {__fadd_rn(__fmul_rn(x, angle.x), __fmul_rn(y, angle.y)),
          __fsub_rn(__fmul_rn(y, angle.x), __fmul_rn(x, angle.y))};
}
// The same of a pair in bf16, rounded.
__device__ inline uint32_t RotateBack(uint32_t pair, const float2& angle) {
  const float2 rotated = RotateBack(Bf16ToFloat(static_cast<uint16_t>(pair)),
                                    Bf16ToFloat(static_cast<uint16_t>(pair >> 16)), angle);
  return PackBf16(rotated.x, rotated.y);
}

}  // namespace lodestone::cuda
