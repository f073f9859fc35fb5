// Rows of a hand-off to a staging slot and back, with their digests (MoveRowsParams).
//
// Four lanes have one row: lane j keeps accumulator j of XXH64 and copies every fourth word of 8
// bytes, so that one pass over the row copies and digests it, kBatch words at a time, since a load
// takes longer than all else. The runs and their pages travel as a kernel argument, of one of two
// sizes, since what it costs to launch grows with it. Bound by the bytes, read once and written
// once.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/op_launchers.h"

namespace lodestone::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kLanes = 4;  // of one row
constexpr int kBatch = 8;  // words that a lane loads before it stores them

struct RunArgs {
  uint8_t* part[RowRun::kMaxParts];
  int64_t page_stride[RowRun::kMaxParts];
  int32_t part_stride[RowRun::kMaxParts];
  int32_t part_bytes[RowRun::kMaxParts];
  int32_t first_entry;
  int32_t first_row;      // of this launch
  int32_t slot_offset;    // bytes
  int32_t first_page;     // in MoveArgs::pages
  int32_t rows_per_page;  // 0: no pages
  int32_t first_in_page;
  int16_t layer;
  uint8_t kind;
  uint8_t wide;  // everything lies at multiples of 8 bytes
};

template <int kRuns, int kPages>
struct MoveArgs {
  static constexpr int kMaxRuns = kRuns;
  static constexpr int kMaxPages = kPages;
  uint8_t* slot;
  unsigned long long* digests;
  int32_t num_rows;
  int32_t num_runs;
  bool pack;
  RunArgs runs[kRuns];
  int32_t pages[kPages];
};
using FewArgs = MoveArgs<64, 1'024>;
using ManyArgs = MoveArgs<192, 4'096>;
static_assert(sizeof(ManyArgs) <= 32'764, "kernel arguments are at most 32,764 bytes");

constexpr uint64_t kPrime1 = 0x9e3779b185ebca87u;
constexpr uint64_t kPrime2 = 0xc2b2ae3d27d4eb4fu;
constexpr uint64_t kPrime3 = 0x165667b19e3779f9u;
constexpr uint64_t kPrime4 = 0x85ebca77c2b2ae63u;
constexpr uint64_t kPrime5 = 0x27d4eb2f165667c5u;

__device__ uint64_t Rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

// The steps of XXH64 (its specification, 3.2 to 3.7).
__device__ uint64_t Round(uint64_t acc, uint64_t lane) {
  return Rotate(acc + lane * kPrime2, 31) * kPrime1;
}
__device__ uint64_t MergeRound(uint64_t acc, uint64_t lane) {
  return (acc ^ Round(0, lane)) * kPrime1 + kPrime4;
}
__device__ uint64_t AddTail8(uint64_t acc, uint64_t lane) {
  return Rotate(acc ^ Round(0, lane), 27) * kPrime1 + kPrime4;
}
__device__ uint64_t AddTail4(uint64_t acc, uint32_t lane) {
  return Rotate(acc ^ lane * kPrime1, 23) * kPrime2 + kPrime3;
}
__device__ uint64_t Avalanche(uint64_t x) {
  x = (x ^ x >> 33) * kPrime2;
  x = (x ^ x >> 29) * kPrime3;
  return x ^ x >> 32;
}

// kernels/numeric/row_digest.h.
__device__ uint64_t Mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
__device__ uint64_t RowSeed(int32_t kind, int32_t layer, int64_t entry) {
  const uint64_t place = static_cast<uint64_t>(kind) << 32 | static_cast<uint32_t>(layer);
  return Mix64(Mix64(place + 0x9e3779b97f4a7c15u) + static_cast<uint64_t>(entry));
}

// One row, at its place in the cache and in the slot; offsets count bytes of the concatenation.
// Formats have row sizes that are multiples of 4 only, and most are of 8.
struct RowPlace {
  uint8_t* part[RowRun::kMaxParts];
  int32_t first_bytes;
  uint8_t* slot;
  bool pack;
  bool wide;

  __device__ uint8_t* InCache(int offset) const {
    return offset < first_bytes ? part[0] + offset : part[1] + (offset - first_bytes);
  }
  template <typename Word>
  __device__ Word Load(int offset) const {
    return *reinterpret_cast<const Word*>(pack ? InCache(offset) : slot + offset);
  }
  template <typename Word>
  __device__ void Store(int offset, Word word) const {
    *reinterpret_cast<Word*>(pack ? slot + offset : InCache(offset)) = word;
  }
  __device__ uint64_t Load8(int offset) const {
    if (wide) return Load<uint64_t>(offset);
    const uint64_t low = Load<uint32_t>(offset);
    return static_cast<uint64_t>(Load<uint32_t>(offset + 4)) << 32 | low;
  }
  __device__ void Store8(int offset, uint64_t word) const {
    if (wide) return Store(offset, word);
    Store(offset, static_cast<uint32_t>(word));
    Store(offset + 4, static_cast<uint32_t>(word >> 32));
  }
  // Copies the word at `offset` in the direction of the move and returns it.
  __device__ uint32_t Move4(int offset) const {
    const uint32_t word = Load<uint32_t>(offset);
    Store(offset, word);
    return word;
  }
  __device__ uint64_t Move8(int offset) const {
    const uint64_t word = Load8(offset);
    Store8(offset, word);
    return word;
  }
};

// Moves the row and returns its XXH64, valid in the first of its four lanes.
__device__ uint64_t MoveRow(const RowPlace& row, int num_bytes, uint64_t seed) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const uint32_t team = 0xfu << (threadIdx.x % 32 / kLanes * kLanes);
  uint64_t acc = seed;
  if (lane == 0) acc += kPrime1 + kPrime2;
  if (lane == 1) acc += kPrime2;
  if (lane == 3) acc -= kPrime1;
  const int stripes = num_bytes / 32;
  int i = 0;
  for (; i + kBatch <= stripes; i += kBatch) {
    uint64_t words[kBatch];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) words[j] = row.Load8(32 * (i + j) + 8 * lane);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) row.Store8(32 * (i + j) + 8 * lane, words[j]);
#pragma unroll
    for (int j = 0; j < kBatch; ++j) acc = Round(acc, words[j]);
  }
  for (; i < stripes; ++i) acc = Round(acc, row.Move8(32 * i + 8 * lane));
  uint64_t all[kLanes];
  for (int j = 0; j < kLanes; ++j) all[j] = __shfl_sync(team, acc, j, kLanes);
  if (lane != 0) return 0;
  uint64_t hash = seed + kPrime5;
  if (stripes > 0) {
    hash = Rotate(all[0], 1) + Rotate(all[1], 7) + Rotate(all[2], 12) + Rotate(all[3], 18);
    for (int j = 0; j < kLanes; ++j) hash = MergeRound(hash, all[j]);
  }
  hash += static_cast<uint64_t>(num_bytes);
  int at = 32 * stripes;
  for (; at + 8 <= num_bytes; at += 8) hash = AddTail8(hash, row.Move8(at));
  if (at < num_bytes) hash = AddTail4(hash, row.Move4(at));
  return Avalanche(hash);
}

// The run that has row `row` of this launch.
template <typename Args>
__device__ const RunArgs& FindRun(const Args& args, int row) {
  int low = 0;
  int high = args.num_runs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (args.runs[middle].first_row <= row) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return args.runs[low];
}

template <typename Args>
__device__ RowPlace PlaceOf(const Args& args, const RunArgs& run, int row) {
  int64_t page = 0;
  int64_t in_page = row;
  if (run.rows_per_page != 0) {
    const int place = run.first_in_page + row;
    page = args.pages[run.first_page + place / run.rows_per_page];
    in_page = place % run.rows_per_page;
  }
  const int64_t num_bytes = run.part_bytes[0] + run.part_bytes[1];
  return {.part = {run.part[0] + page * run.page_stride[0] + in_page * run.part_stride[0],
                   run.part[1] + page * run.page_stride[1] + in_page * run.part_stride[1]},
          .first_bytes = run.part_bytes[0],
          .slot = args.slot + run.slot_offset + row * num_bytes,
          .pack = args.pack,
          .wide = run.wide != 0};
}

template <typename Args>
__global__ void MoveRowsKernel(const __grid_constant__ Args args) {
  __shared__ unsigned long long digests[kNumCacheKinds];
  if (threadIdx.x < kNumCacheKinds) digests[threadIdx.x] = 0;
  WaitForPreviousKernel();
  __syncthreads();
  const int index = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / kLanes);
  if (index < args.num_rows) {
    const RunArgs& run = FindRun(args, index);
    const int row = index - run.first_row;
    const uint64_t seed = RowSeed(run.kind, run.layer, int64_t{run.first_entry} + row);
    const uint64_t hash =
        MoveRow(PlaceOf(args, run, row), run.part_bytes[0] + run.part_bytes[1], seed);
    if (threadIdx.x % kLanes == 0) {
      atomicAdd(&digests[run.kind], static_cast<unsigned long long>(Mix64(hash)));
    }
  }
  __syncthreads();
  if (threadIdx.x < kNumCacheKinds && digests[threadIdx.x] != 0) {
    atomicAdd(&args.digests[threadIdx.x], digests[threadIdx.x]);
  }
}

template <typename Args>
void LaunchMoves(const Args& args, cudaStream_t stream) {
  LaunchOverlapped(MoveRowsKernel<Args>,
                   {.blocks = (int64_t{args.num_rows} * kLanes + kThreads - 1) / kThreads,
                    .threads = kThreads},
                   stream, args);
}

// A run whose rows begin at `slot_offset` of the slot and are numbered from `first_row` on; all but
// its first_page.
RunArgs ToArgs(const RowRun& run, int32_t first_row, int64_t slot_offset) {
  constexpr int64_t kMost = 0x7fffffff;
  RequireArgument(run.part_bytes[0] % 4 == 0 && run.part_bytes[1] % 4 == 0, "LaunchMoveRows",
                  "row bytes are not a multiple of 4", run.row_bytes());
  RequireArgument(run.first_entry + run.num_rows <= kMost, "LaunchMoveRows", "entry",
                  run.first_entry);
  RequireArgument(slot_offset + run.bytes() <= kMost, "LaunchMoveRows", "bytes of a slot",
                  slot_offset + run.bytes());
  RunArgs out = {};
  uint64_t places = static_cast<uint64_t>(slot_offset);
  for (int i = 0; i < run.num_parts; ++i) {
    RequireArgument(run.part_stride[i] <= kMost, "LaunchMoveRows", "stride", run.part_stride[i]);
    out.part[i] = reinterpret_cast<uint8_t*>(run.part[i]);
    out.page_stride[i] = run.page_stride[i];
    out.part_stride[i] = static_cast<int32_t>(run.part_stride[i]);
    out.part_bytes[i] = static_cast<int32_t>(run.part_bytes[i]);
    places |= reinterpret_cast<uint64_t>(run.part[i]) | static_cast<uint64_t>(run.page_stride[i]) |
              static_cast<uint64_t>(run.part_stride[i]) | static_cast<uint64_t>(run.part_bytes[i]);
  }
  out.first_entry = static_cast<int32_t>(run.first_entry);
  out.first_row = first_row;
  out.slot_offset = static_cast<int32_t>(slot_offset);
  if (run.pages != nullptr) {
    out.rows_per_page = static_cast<int32_t>(run.rows_per_page);
    out.first_in_page = static_cast<int32_t>(run.first_in_page);
  }
  out.layer = static_cast<int16_t>(run.layer);
  out.kind = static_cast<uint8_t>(run.kind);
  out.wide = places % 8 == 0;
  return out;
}

// The runs of one launch. Those of a sequence share its pages, which are sent once: as the one
// piece of its block table that has all of theirs.
class MoveBatch {
 public:
  MoveBatch(const MoveRowsParams& p, bool pack) {
    args_.slot = reinterpret_cast<uint8_t*>(p.slot);
    args_.digests = reinterpret_cast<unsigned long long*>(p.digests);
    args_.pack = pack;
    args_.num_rows = 0;
    args_.num_runs = 0;
  }

  // Whether a run, of at most kMaxPages pages, can come to the others.
  bool Takes(const RowRun& run) const {
    if (args_.num_runs == ManyArgs::kMaxRuns) return false;
    if (run.pages == nullptr || first_page_ == nullptr) return true;
    const PageId* const end = run.pages + run.num_pages();
    if (run.pages > end_page_ || end < first_page_) return false;  // of another block table perhaps
    return std::max(end, end_page_) - std::min(run.pages, first_page_) <= ManyArgs::kMaxPages;
  }

  void Add(const RowRun& run, int64_t slot_offset) {
    run_pages_[args_.num_runs] = run.pages;
    args_.runs[args_.num_runs++] = ToArgs(run, args_.num_rows, slot_offset);
    args_.num_rows += static_cast<int32_t>(run.num_rows);
    if (run.pages == nullptr) return;
    const PageId* const end = run.pages + run.num_pages();
    const bool is_first = first_page_ == nullptr;
    first_page_ = is_first ? run.pages : std::min(first_page_, run.pages);
    end_page_ = is_first ? end : std::max(end_page_, end);
  }

  // Empties the batch.
  void Launch(cudaStream_t stream) {
    if (args_.num_runs == 0) return;
    for (int i = 0; i < args_.num_runs; ++i) {
      if (run_pages_[i] == nullptr) continue;
      args_.runs[i].first_page = static_cast<int32_t>(run_pages_[i] - first_page_);
    }
    const bool few =
        args_.num_runs <= FewArgs::kMaxRuns && end_page_ - first_page_ <= FewArgs::kMaxPages;
    if (few) {
      FewArgs args;
      args.slot = args_.slot;
      args.digests = args_.digests;
      args.num_rows = args_.num_rows;
      args.num_runs = args_.num_runs;
      args.pack = args_.pack;
      std::copy_n(args_.runs, args_.num_runs, args.runs);
      CopyPages(args.pages);
      LaunchMoves(args, stream);
    } else {
      CopyPages(args_.pages);
      LaunchMoves(args_, stream);
    }
    args_.num_runs = 0;
    args_.num_rows = 0;
    first_page_ = end_page_ = nullptr;
  }

 private:
  void CopyPages(int32_t* to) const {
    std::transform(first_page_, end_page_, to, [](PageId page) { return page.value(); });
  }

  ManyArgs args_;
  const PageId* run_pages_[ManyArgs::kMaxRuns];  // null: no pages
  const PageId* first_page_ = nullptr;
  const PageId* end_page_ = nullptr;
};

void LaunchMoveRows(const MoveRowsParams& p, bool pack, cudaStream_t stream) {
  RequireArgument(reinterpret_cast<uint64_t>(p.slot) % 8 == 0, "LaunchMoveRows", "slot",
                  static_cast<int64_t>(reinterpret_cast<uint64_t>(p.slot)));
  MoveBatch batch(p, pack);
  int64_t slot_offset = 0;
  for (const RowRun& run : p.runs) {
    for (int64_t first = 0; first < run.num_rows;) {
      int64_t count = run.num_rows - first;
      if (run.pages != nullptr) {
        const int64_t in_page = (run.first_in_page + first) % run.rows_per_page;
        count = std::min(count, ManyArgs::kMaxPages * run.rows_per_page - in_page);
      }
      const RowRun piece = run.Rows(first, count);
      if (!batch.Takes(piece)) batch.Launch(stream);
      batch.Add(piece, slot_offset);
      slot_offset += piece.bytes();
      first += count;
    }
  }
  batch.Launch(stream);
}

}  // namespace

void LaunchPackRows(const MoveRowsParams& p, cudaStream_t stream) {
  LaunchMoveRows(p, true, stream);
}

void LaunchScatterRows(const MoveRowsParams& p, cudaStream_t stream) {
  LaunchMoveRows(p, false, stream);
}

}  // namespace lodestone::cuda
