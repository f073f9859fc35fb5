// Index scores and their selection (IndexTopKParams), as many tokens at a time as the scores of
// kMaxScoreBytes allow, so that scratch does not grow with the context.

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launchers.h"

namespace lodestone::cuda {

void LaunchIndexTopK(const IndexTopKArgs& args, cudaStream_t stream) {
  const IndexScoresArgs& index = args.index;
  const IndexScoresPath path = ChooseIndexScoresPath(index);
  const int64_t rows = ScoreRows(index.num_tokens, index.max_visible);
  for (int64_t first = 0; first < index.num_tokens; first += rows) {
    IndexScoresArgs part = index;
    part.num_tokens = std::min(rows, index.num_tokens - first);
    part.q += first * index.num_heads * index.head_dim;
    part.weight += first * index.num_heads;
    part.token_seq += first;
    part.num_visible += first;
    part.scores = static_cast<float*>(args.scratch);
    part.score_stride = ScoreStride(index.max_visible);
    LaunchIndexScores(part, path, stream);
    const TopKArgs select = {.scores = part.scores,
                             .score_stride = part.score_stride,
                             .num_visible = part.num_visible,
                             .num_rows = part.num_tokens,
                             .max_visible = index.max_visible,
                             .k = args.k,
                             .top_entries = args.top_entries + first * args.k};
    LaunchTopK(select,
               ChooseTopKTile(select.num_rows, select.max_visible, CurrentDevice().processors),
               stream);
  }
}

}  // namespace lodestone::cuda
