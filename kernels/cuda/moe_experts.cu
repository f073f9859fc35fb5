// Experts (MoeExpertsParams): pairs of token and expert are sorted by expert into slots, the shared
// expert being the last with every token; both gate products of all experts are one launch of
// gemm.h over the tiles of slots, then the activation, then w2, then every token adds its slots in
// ascending order of experts. Where the shared expert is stored in another format than the routed
// ones, its products are launches of their own. Inputs that products round to FP8 are rounded once:
// those of the block ahead, those of w2 by the activation. kBlockTokens tokens at a time, so that
// scratch does not grow with the batch. Bound by the bytes of the chosen experts' weights for few
// tokens, else by the tensor cores.

#include <algorithm>
#include <initializer_list>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/numeric.cuh"
#include "kernels/cuda/device/round_inputs.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"
#include "kernels/cuda/packed_matrix.h"

namespace lodestone::cuda {
namespace {

constexpr int64_t kBlockTokens = 4096;
constexpr int64_t kMinTileRows = 16;
constexpr int64_t kAlignment = 256;
constexpr int kMaxExperts = 1024;
constexpr int kSortThreads = 1024;
constexpr int kThreads = 256;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The scratch of one block of tokens, carved in order.
struct Scratch {
  int32_t* slot_token;   // [slots]  row of x
  float* slot_weight;    // [slots]
  int32_t* token_slots;  // [tokens, chosen + 1]  in ascending order of experts
  int32_t* num_tiles;
  ExpertTile* tiles;
  uint16_t* rounded;  // [tokens, hidden]  Q8(x)
  uint16_t* gate_up;  // [slots, 2 * width]; then the experts' results [slots, hidden]
  uint16_t* inner;    // [slots, width]
  int64_t num_bytes;
};

struct Sizes {
  int64_t tokens, chosen, hidden, width, experts;
  int64_t slots() const { return tokens * (chosen + 1); }
  int64_t max_tiles(int64_t tile_rows) const {
    return std::min(slots(), slots() / tile_rows + experts + 1);
  }
};

Scratch Carve(const Sizes& sizes, uint8_t* base) {
  Scratch scratch = {};
  int64_t at = 0;
  const auto take = [&](auto*& pointer, int64_t count) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + at);
    at += RoundUp(count * static_cast<int64_t>(sizeof(*pointer)));
  };
  take(scratch.slot_token, sizes.slots());
  take(scratch.slot_weight, sizes.slots());
  take(scratch.token_slots, sizes.slots());
  take(scratch.num_tiles, 1);
  take(scratch.tiles, sizes.max_tiles(kMinTileRows));
  take(scratch.rounded, sizes.tokens * sizes.hidden);
  take(scratch.gate_up, sizes.slots() * std::max(2 * sizes.width, sizes.hidden));
  take(scratch.inner, sizes.slots() * sizes.width);
  scratch.num_bytes = at;
  return scratch;
}

// Where the shared expert's slots, the last ones, are: among the tiles, in no tile, or nowhere.
enum class SharedSlots : uint8_t { kInTiles, kApart, kNone };

struct SortArgs {
  const int32_t* experts;  // [tokens, chosen]
  const float* weights;
  int64_t experts_stride, weights_stride;
  Scratch scratch;
  int tokens, chosen, num_experts, tile_rows;
  SharedSlots shared;
};

struct SortShared {
  int32_t next[kMaxExperts + 1];       // counts, then the next free slot of each expert
  int32_t first_slot[kMaxExperts + 2];
  int32_t first_tile[kMaxExperts + 2];
};

// Exclusive sums of counts and of tiles. By the first warp.
__device__ void SumCounts(const SortArgs& args, SortShared& shared) {
  const int lane = static_cast<int>(threadIdx.x);
  int slots = 0;
  int tiles = 0;
  for (int first = 0; first <= args.num_experts; first += 32) {
    const int expert = first + lane;
    const int count = expert <= args.num_experts ? shared.next[expert] : 0;
    const int own_tiles = (count + args.tile_rows - 1) / args.tile_rows;
    int slot_sum = count;
    int tile_sum = own_tiles;
    for (int offset = 1; offset < 32; offset *= 2) {
      const int lower_slots = __shfl_up_sync(~0u, slot_sum, offset);
      const int lower_tiles = __shfl_up_sync(~0u, tile_sum, offset);
      if (lane >= offset) {
        slot_sum += lower_slots;
        tile_sum += lower_tiles;
      }
    }
    if (expert <= args.num_experts) {
      shared.first_slot[expert] = slots + slot_sum - count;
      shared.first_tile[expert] = tiles + tile_sum - own_tiles;
      shared.next[expert] = shared.first_slot[expert];
    }
    slots += __shfl_sync(~0u, slot_sum, 31);
    tiles += __shfl_sync(~0u, tile_sum, 31);
  }
  if (lane == 0) {
    shared.first_slot[args.num_experts + 1] = slots;
    shared.first_tile[args.num_experts + 1] = tiles;
    *args.scratch.num_tiles = tiles;
  }
}

__device__ void PlaceTokens(const SortArgs& args, SortShared& shared) {
  const auto place = [&](int token, int i, int slot, float weight) {
    args.scratch.slot_token[slot] = token;
    args.scratch.slot_weight[slot] = weight;
    args.scratch.token_slots[token * (args.chosen + 1) + i] = slot;
  };
  for (int pair = static_cast<int>(threadIdx.x); pair < args.tokens * args.chosen;
       pair += kSortThreads) {
    const int token = pair / args.chosen;
    const int i = pair % args.chosen;
    const int expert = args.experts[token * args.experts_stride + i];
    place(token, i, atomicAdd(&shared.next[expert], 1),
          args.weights[token * args.weights_stride + i]);
  }
  if (args.shared == SharedSlots::kNone) return;
  for (int token = static_cast<int>(threadIdx.x); token < args.tokens; token += kSortThreads) {
    place(token, args.chosen, shared.first_slot[args.num_experts] + token, 1.0f);
  }
}

// The order of an expert's slots follows the atomics, and does not matter: a slot's result depends
// on its token only.
__global__ void SortByExpertKernel(const __grid_constant__ SortArgs args) {
  __shared__ SortShared shared;
  WaitForPreviousKernel();
  for (int e = static_cast<int>(threadIdx.x); e <= args.num_experts; e += kSortThreads) {
    shared.next[e] =
        e == args.num_experts && args.shared == SharedSlots::kInTiles ? args.tokens : 0;
  }
  __syncthreads();
  for (int pair = static_cast<int>(threadIdx.x); pair < args.tokens * args.chosen;
       pair += kSortThreads) {
    atomicAdd(&shared.next[args.experts[pair / args.chosen * args.experts_stride +
                                        pair % args.chosen]], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) SumCounts(args, shared);
  __syncthreads();
  PlaceTokens(args, shared);
  for (int e = static_cast<int>(threadIdx.x); e <= args.num_experts; e += kSortThreads) {
    const int end = shared.first_slot[e + 1];
    int tile = shared.first_tile[e];
    for (int first = shared.first_slot[e]; first < end; first += args.tile_rows) {
      args.scratch.tiles[tile++] = {e, first, min(args.tile_rows, end - first)};
    }
  }
}

struct ActivateArgs {
  const uint16_t* gate_up;
  const float* slot_weight;
  uint16_t* inner;
  int64_t slots, routed_slots;
  int width;
  float limit;
  bool round_routed, round_shared;  // Q8 of the result, for the product with w2
};

__device__ inline float Activate(uint16_t gate_bits, uint16_t up_bits, float weight, float limit) {
  float gate = Bf16ToFloat(gate_bits);
  float up = Bf16ToFloat(up_bits);
  gate = gate > limit ? limit : gate;
  up = up > limit ? limit : (up < -limit ? -limit : up);
  const float silu = gate / (1.0f + expf(-gate));
  return silu * up * weight;
}

// inner = round(silu(min(gate, limit)) * clamp(up) * weight); a NaN stays NaN. A warp has one group
// of kRoundedGroup channels of a slot, four a lane.
__global__ void ActivateKernel(const __grid_constant__ ActivateArgs args) {
  WaitForPreviousKernel();
  const int64_t groups = NumRoundedGroups(args.width);
  const int64_t group = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int64_t slot = group / groups;
  if (slot >= args.slots) return;
  const int64_t channel = group % groups * kRoundedGroup + 4 * (threadIdx.x % 32);
  uint2 words = {0, 0};
  if (channel < args.width) {
    const uint16_t* const gate = args.gate_up + slot * 2 * args.width + channel;
    const float weight = args.slot_weight[slot];
    const auto value = [&](int i) {
      return Activate(gate[i], gate[args.width + i], weight, args.limit);
    };
    words = {PackBf16(value(0), value(1)), PackBf16(value(2), value(3))};
  }
  if (slot < args.routed_slots ? args.round_routed : args.round_shared) words = RoundGroup(words);
  if (channel < args.width) {
    *reinterpret_cast<uint2*>(args.inner + slot * args.width + channel) = words;
  }
}

struct CombineArgs {
  const uint16_t* results;  // [slots, hidden]
  const int32_t* token_slots;
  uint16_t* out;
  int64_t out_stride, num_elements;
  int hidden, chosen, count;  // count: chosen, and the shared one if there is one
};

__global__ void CombineKernel(const __grid_constant__ CombineArgs args) {
  WaitForPreviousKernel();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= args.num_elements) return;
  const int64_t token = i / args.hidden;
  const int64_t channel = i % args.hidden;
  float sum = 0;
  for (int j = 0; j < args.count; ++j) {
    const int64_t slot = args.token_slots[token * (args.chosen + 1) + j];
    sum += Bf16ToFloat(args.results[slot * args.hidden + channel]);
  }
  args.out[token * args.out_stride + channel] = FloatToBf16(sum);
}

template <typename Kernel, typename Args>
void LaunchElements(Kernel kernel, const Args& args, cudaStream_t stream) {
  LaunchOverlapped(kernel,
                   {.blocks = (args.num_elements + kThreads - 1) / kThreads, .threads = kThreads},
                   stream, args);
}

// Bytes between one expert's matrices and the next one's. REQUIRES: they are evenly spaced, as the
// loader packs them.
int64_t ExpertStride(const MoeExpertsParams& p) {
  if (p.routed.size() < 2) return 0;
  const auto address = [](const PackedWeight& weight) { return weight.data.as<uint8_t>(); };
  const int64_t stride = address(p.routed[1].w1) - address(p.routed[0].w1);
  for (size_t e = 1; e < p.routed.size(); ++e) {
    const int64_t offset = stride * static_cast<int64_t>(e);
    const bool even = address(p.routed[e].w1) == address(p.routed[0].w1) + offset &&
                      address(p.routed[e].w2) == address(p.routed[0].w2) + offset &&
                      address(p.routed[e].w3) == address(p.routed[0].w3) + offset;
    RequireArgument(even, "LaunchMoeExperts", "experts are not evenly spaced in memory, expert",
                    static_cast<int64_t>(e));
  }
  return stride;
}

// By warpgroups (sm_90a) a tile of 64 rows takes about as long as one of few, for it is the weights
// that are widened.
int TileRows(const Sizes& sizes) {
  const int64_t mean = sizes.tokens * sizes.chosen / sizes.experts;
  if (CurrentDevice().sm90) return mean <= 12 ? 16 : mean <= 64 ? 64 : 128;
  return mean <= 16 ? 16 : mean <= 32 ? 32 : mean <= 64 ? 64 : 128;
}

// The block's tokens and what is launched for them.
struct Block {
  const MoeExpertsParams& p;
  const int64_t first;  // token
  const Sizes sizes;
  const Scratch scratch;
  const int64_t expert_stride;
  const int tile_rows;
  const SharedSlots shared;
  const cudaStream_t stream;

  int count() const {
    return static_cast<int>(sizes.chosen) + (shared == SharedSlots::kNone ? 0 : 1);
  }
  int64_t slots() const { return sizes.tokens * count(); }
  int64_t routed_slots() const { return sizes.tokens * sizes.chosen; }
  bool round_routed() const { return p.round_fp8 && IsQuantised(p.routed[0].w1.format); }
  bool round_shared() const {
    return p.round_fp8 && p.shared != nullptr && IsQuantised(p.shared->w1.format);
  }
};

void LaunchSort(const Block& block) {
  LaunchOverlapped(SortByExpertKernel, {.blocks = 1, .threads = kSortThreads}, block.stream,
                   SortArgs{.experts = block.p.experts.row<int32_t>(block.first),
                            .weights = block.p.weights.row<float>(block.first),
                            .experts_stride = block.p.experts.strides[0],
                            .weights_stride = block.p.weights.strides[0],
                            .scratch = block.scratch,
                            .tokens = static_cast<int>(block.sizes.tokens),
                            .chosen = static_cast<int>(block.sizes.chosen),
                            .num_experts = static_cast<int>(block.sizes.experts),
                            .tile_rows = block.tile_rows,
                            .shared = block.shared});
}

using ExpertMatrix = PackedWeight ExpertWeights::*;

// The block's tokens, as they are or rounded.
void SetInputs(const Block& block, bool rounded, GemmArgs& product) {
  product.x = rounded ? block.scratch.rounded : block.p.x.row<uint16_t>(block.first);
  product.x_stride = rounded ? block.sizes.hidden : block.p.x.strides[0];
}

// One product of every slot with the matrices `of` its expert; `product` has output and inputs: the
// slots' own rows, or with `of_tokens`, which needs none, those of their tokens.
void LaunchProducts(const Block& block, GemmArgs product, std::initializer_list<ExpertMatrix> of,
                    bool of_tokens) {
  const ExpertWeights& routed = block.p.routed[0];
  const bool is_apart = block.shared == SharedSlots::kApart;
  const ExpertWeights& shared = block.shared == SharedSlots::kInTiles ? *block.p.shared : routed;
  const MatrixSpec& spec = routed.**of.begin();
  product.parts = static_cast<int>(of.size());
  product.of_experts = true;
  product.n = spec.n;
  product.k = spec.k;
  product.out_stride = product.parts * product.n;
  GemmArgs apart = product;
  int part = 0;
  for (const ExpertMatrix matrix : of) {
    product.weight[part] = GemmWeightOf(routed.*matrix);
    product.shared_weight[part] = GemmWeightOf(shared.*matrix);
    if (is_apart) apart.weight[part] = GemmWeightOf(block.p.shared->*matrix);
    ++part;
  }
  product.rows = block.slots();
  product.format = spec.format;
  if (of_tokens) SetInputs(block, block.round_routed(), product);
  product.tiles = block.scratch.tiles;
  product.num_tiles = block.scratch.num_tiles;
  product.max_tiles = block.sizes.max_tiles(block.tile_rows);
  product.tile_rows = block.tile_rows;
  product.expert_stride = block.expert_stride;
  product.num_experts = static_cast<int>(block.sizes.experts);
  product.x_rows = of_tokens ? block.scratch.slot_token : nullptr;
  LaunchGemm(product, block.stream);
  if (!is_apart) return;
  apart.rows = block.sizes.tokens;
  apart.format = (block.p.shared->**of.begin()).format;
  if (of_tokens) SetInputs(block, block.round_shared(), apart);
  if (!of_tokens) apart.x += block.routed_slots() * apart.x_stride;
  apart.out = static_cast<uint16_t*>(apart.out) + block.routed_slots() * apart.out_stride;
  LaunchGemm(apart, block.stream);
}

void LaunchActivate(const Block& block) {
  const int64_t warps = block.slots() * NumRoundedGroups(block.sizes.width);
  LaunchOverlapped(ActivateKernel,
                   {.blocks = (warps * 32 + kThreads - 1) / kThreads, .threads = kThreads},
                   block.stream,
                   ActivateArgs{.gate_up = block.scratch.gate_up,
                                .slot_weight = block.scratch.slot_weight,
                                .inner = block.scratch.inner,
                                .slots = block.slots(),
                                .routed_slots = block.routed_slots(),
                                .width = static_cast<int>(block.sizes.width),
                                .limit = block.p.limit,
                                .round_routed = block.round_routed(),
                                .round_shared = block.round_shared()});
}

void LaunchBlock(const Block& block) {
  const Scratch& scratch = block.scratch;
  const Sizes& sizes = block.sizes;
  LaunchSort(block);
  if (block.round_routed() || block.round_shared()) {
    LaunchInputs({.x = block.p.x.row<uint16_t>(block.first),
                  .x_stride = block.p.x.strides[0],
                  .rows = sizes.tokens,
                  .k = sizes.hidden,
                  .round = true,
                  .out = scratch.rounded},
                 block.stream);
  }
  LaunchProducts(block, {.out = scratch.gate_up}, {&ExpertWeights::w1, &ExpertWeights::w3}, true);
  LaunchActivate(block);
  LaunchProducts(block,
                 {.x = scratch.inner, .x_stride = sizes.width, .out = scratch.gate_up},
                 {&ExpertWeights::w2}, false);
  LaunchElements(CombineKernel,
                 CombineArgs{.results = scratch.gate_up,
                             .token_slots = scratch.token_slots,
                             .out = block.p.out.row<uint16_t>(block.first),
                             .out_stride = block.p.out.strides[0],
                             .num_elements = sizes.tokens * sizes.hidden,
                             .hidden = static_cast<int>(sizes.hidden),
                             .chosen = static_cast<int>(sizes.chosen),
                             .count = block.count()},
                 block.stream);
}

}  // namespace

int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                               int64_t width, int64_t num_experts) {
  const Sizes sizes = {.tokens = std::min(num_tokens, kBlockTokens),
                       .chosen = experts_per_token,
                       .hidden = hidden,
                       .width = width,
                       .experts = num_experts};
  return Carve(sizes, nullptr).num_bytes;
}

void LaunchMoeExperts(const MoeExpertsParams& p, cudaStream_t stream) {
  Sizes sizes = {.tokens = 0,
                 .chosen = p.experts.shape[1],
                 .hidden = p.x.shape[1],
                 .width = p.routed[0].w1.n,
                 .experts = static_cast<int64_t>(p.routed.size())};
  RequireArgument(sizes.experts <= kMaxExperts, "LaunchMoeExperts", "more than 1,024 experts",
                  sizes.experts);
  const int64_t expert_stride = ExpertStride(p);
  const SharedSlots shared = p.shared == nullptr ? SharedSlots::kNone
                             : p.shared->w1.format == p.routed[0].w1.format
                                 ? SharedSlots::kInTiles
                                 : SharedSlots::kApart;
  for (int64_t first = 0; first < p.x.shape[0]; first += kBlockTokens) {
    sizes.tokens = std::min(kBlockTokens, p.x.shape[0] - first);
    LaunchBlock({.p = p,
                 .first = first,
                 .sizes = sizes,
                 .scratch = Carve(sizes, p.scratch.as<uint8_t>()),
                 .expert_stride = expert_stride,
                 .tile_rows = TileRows(sizes),
                 .shared = shared,
                 .stream = stream});
  }
}

}  // namespace lodestone::cuda
