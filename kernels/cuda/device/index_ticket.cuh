#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/index_tile.cuh"

// Tickets of the index scores kernel, each for a few tiles behind the blocks' equal shares: a block
// draws one while it works on those before, so that all blocks end at about the same time. A word
// of device memory counts the tickets drawn.
namespace lodestone::cuda {

// The tiles from `first` on are dealt by `coarse` tickets of kTicketTiles, then by tickets of
// kFineTiles.
struct TicketPlan {
  int first;
  int end;
  int coarse;
  __device__ TicketPlan(int64_t first_tile, int64_t end_tile)
      : first(static_cast<int>(first_tile)),
        end(static_cast<int>(end_tile)),
        coarse(static_cast<int>((end_tile - first_tile) * kCoarseShare / 16 / kTicketTiles)) {}
  __device__ int FirstTile(int ticket) const {
    const int fine = max(ticket - coarse, 0);
    return min(first + (ticket - fine) * kTicketTiles + fine * kFineTiles, end);
  }
  __device__ uint32_t num_tickets() const {
    return coarse + (end - first - coarse * kTicketTiles + kFineTiles - 1) / kFineTiles;
  }
};

// Draws a ticket of `count` from a word that is 0 before a launch. Each block draws until it gets
// a ticket that does not exist, `count` or more, and the last such draw makes the word 0 again.
__device__ inline uint32_t DrawTicket(uint32_t* word, uint32_t count) {
  return atomicInc(word, count + gridDim.x - 1);
}

// The token whose tiles include `tile`, of all tokens' tiles. By a whole warp.
__device__ inline int TokenOfTile(const int* tiles_before, int64_t num_tokens, int tile) {
  int found = 0;
  for (int first = 0; first < num_tokens; first += 32) {
    // Beyond the last token the table holds the number of all tiles.
    found += __popc(__ballot_sync(~0u, tiles_before[first + threadIdx.x % 32] <= tile));
  }
  return found - 1;
}

// Hands the tiles [tile, end) of all tokens, at most those of one token, to the block's other warps
// as item `index`; none if tile is end: no more follow. By a whole warp. Returns how many.
template <typename Tile>
__device__ int HandOut(const IndexScoresArgs& args, int tile, int end, uint32_t index,
                       IndexScoresShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  const uint32_t slot = index % Tile::kItems;
  IndexItem& item = shared.items[slot];
  BarrierWait(&shared.item_empty[slot], (index / Tile::kItems + 1) % 2);
  const int token = tile < end ? TokenOfTile(shared.table.tiles_before, args.num_tokens, tile) : 0;
  const int first = tile - shared.table.tiles_before[token];
  const int count = max(min(end, shared.table.tiles_before[token + 1]) - tile, 0);
  if (lane < count) {
    const int64_t page = shared.table.seqs[token] * args.max_pages + first + lane;
    CopyAsync<4>(SharedAddress(&item.pages[lane]), args.block_table + page, 4);
  }
  CopyAsyncArrive(&shared.item_full[slot]);
  if (lane == 0) {
    item.token = token;
    item.tile = first;
    item.count = count;
    BarrierArrive(&shared.item_full[slot]);
  }
  return count;
}

// The ticket warp. The next ticket is on its way while the tiles of one are handed out.
template <typename Tile>
__device__ void DealTiles(const IndexScoresArgs& args, const IndexShare& share, uint32_t* word,
                          IndexScoresShared<Tile>& shared) {
  const TicketPlan plan(share.dealt, share.total);
  const uint32_t count = plan.num_tickets();
  const bool draws = threadIdx.x % 32 == 0;
  uint32_t index = 0;
  uint32_t drawn = draws ? DrawTicket(word, count) : 0;
  for (;;) {
    const uint32_t ticket = __shfl_sync(~0u, drawn, 0);
    if (ticket >= count) break;
    if (draws) drawn = DrawTicket(word, count);
    int tile = plan.FirstTile(ticket);
    const int end = plan.FirstTile(ticket + 1);
    while (tile < end) tile += HandOut(args, tile, end, index++, shared);
  }
  HandOut(args, plan.end, plan.end, index, shared);
}

// Some tiles of one token group, which are the block's from `number` on.
struct IndexPart {
  int token;
  TokenGroup group;  // group.tiles is 0 in a dealt part
  int tile;
  int count;
  uint32_t number;
  int slot = -1;          // of the item of a dealt part, to be released once it is read
  bool new_group = true;  // not that of the part before
};

// Calls f(part) for the parts of a block: its equal share, then what is dealt to it.
template <typename Tile, typename F>
__device__ void ForEachPart(const IndexScoresArgs& args, const IndexShare& share,
                            IndexScoresShared<Tile>& shared, const F& f) {
  IndexPart part{share.first_token, {}, share.first_tile, 0, 0};
  int left = static_cast<int>(share.num_tiles);
  int token = -1;
  uint32_t index = 0;  // of the item
  for (;;) {
    if (left > 0) {
      part.group = GroupAt<Tile::kTokens>(args, part.token);
      part.count = min(part.group.tiles - part.tile, left);
    } else {
      if (!Tile::kDeals || share.dealt == share.total) return;
      part.slot = index % Tile::kItems;
      BarrierWait(&shared.item_full[part.slot], index / Tile::kItems % 2);
      ++index;
      const IndexItem& item = shared.items[part.slot];
      part.token = item.token;
      part.group = {1, 0};
      part.tile = item.tile;
      part.count = item.count;
      if (part.count == 0) return;
    }
    if (Tile::kDeals) part.new_group = part.token != token;
    token = part.token;
    if (part.count > 0) f(part);
    part.number += part.count;
    left -= part.count;
    part.tile = 0;
    part.token += part.group.tokens;
  }
}

// Gives an item back that was read. By a whole warp.
template <typename Tile>
__device__ void ReleaseItem(int slot, IndexScoresShared<Tile>& shared) {
  __syncwarp();  // all lanes have read
  if (threadIdx.x % 32 == 0) BarrierArrive(&shared.item_empty[slot]);
}

}  // namespace lodestone::cuda
