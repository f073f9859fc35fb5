#include "tests/testing/paired_ops.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/logging.h"

namespace lodestone {
namespace {

// The matrices of a layer, in one order.
std::vector<const PackedWeight*> MatricesOf(const LayerWeights& layer) {
  const AttentionWeights& a = layer.attention;
  const FeedForwardWeights& f = layer.feed_forward;
  std::vector<const PackedWeight*> matrices = {&layer.hc_attn.fn,
                                               &layer.hc_ffn.fn,
                                               &a.wq_a,
                                               &a.wq_b,
                                               &a.wkv,
                                               &a.wo_a,
                                               &a.wo_b,
                                               &a.compressor.wkv,
                                               &a.compressor.wgate,
                                               &a.indexer.wq_b,
                                               &a.indexer.weights_proj,
                                               &a.indexer.compressor.wkv,
                                               &a.indexer.compressor.wgate,
                                               &f.gate,
                                               &f.shared.w1,
                                               &f.shared.w3,
                                               &f.shared.w2};
  for (const ExpertWeights& expert : f.routed) {
    for (const PackedWeight* matrix : {&expert.w1, &expert.w3, &expert.w2}) {
      matrices.push_back(matrix);
    }
  }
  return matrices;
}

std::span<const int32_t> ChosenOf(const TensorView& chosen, int64_t token) {
  return {chosen.row<int32_t>(token), static_cast<size_t>(chosen.shape[1])};
}

// Where values are rounded to FP8 or FP4 inside an op, another name: another tolerance.
std::string NameOf(const std::string& op, bool rounded) {
  return rounded ? op + " with codes" : op;
}

struct Scratch {
  explicit Scratch(int64_t num_bytes)
      : bytes(static_cast<size_t>(std::max<int64_t>(num_bytes, 1))),
        view(bytes.data(), DType::kU8, {static_cast<int64_t>(bytes.size())}) {}
  std::vector<std::byte> bytes;
  TensorView view;
};

}  // namespace

PairedOps::PairedOps(const LoadedModel& base, const Ops& other, const Weights& weights)
    : ForwardingOps(base.ops), base_(base), other_(other) {
  PairWeights(base.weights, weights);
}

void PairedOps::PairWeights(const Weights& base, const Weights& other) {
  const auto pair = [this](const TensorView& from, const TensorView& to) {
    if (!from.empty()) twins_[from.data] = to;
  };
  pair(base.embedding, other.embedding);
  pair(base.head.data, other.head.data);
  pair(base.head_collapse.fn.data, other.head_collapse.fn.data);
  for (size_t layer = 0; layer < base.layers.size(); ++layer) {
    const auto from = MatricesOf(base.layers[layer]), to = MatricesOf(other.layers[layer]);
    for (size_t i = 0; i < from.size(); ++i) pair(from[i]->data, to[i]->data);
  }
}

PackedWeight PairedOps::TwinOf(const PackedWeight& weight) const {
  PackedWeight twin = weight;
  twin.data = twins_.at(weight.data.data);
  return twin;
}

ExpertWeights PairedOps::TwinOf(const ExpertWeights& expert) const {
  return {TwinOf(expert.w1), TwinOf(expert.w3), TwinOf(expert.w2)};
}

template <typename Params>
void PairedOps::RunBoth(const std::string& name, Op<Params> op, const Params& params,
                        const Params& twin, const OutputTwins& twins, Stream& stream,
                        const std::function<void(OpDifference&)>& compare) const {
  (other_.*op)(twin, stream);
  if (goes_on_ != GoesOn::kOtherAlone) {
    (base_.ops.*op)(params, stream);
    CHECK(stream.Synchronize().ok());
    twins.Compare(differences_[name]);
    if (compare) compare(differences_[name]);
  }
  if (goes_on_ != GoesOn::kBase) twins.CopyBack();
}

template <typename Params, typename... Outputs>
void PairedOps::RunWithTwins(const std::string& name, Op<Params> op, const Params& params,
                             Stream& stream, Outputs Params::*... outputs) const {
  Params twin = params;
  OutputTwins twins;
  (twins.Add(twin.*outputs), ...);
  RunBoth(name, op, params, twin, twins, stream);
}

void PairedOps::EmbedTokens(const EmbedTokensParams& params, Stream& stream) const {
  EmbedTokensParams twin = params;
  OutputTwins twins;
  twins.Add(twin.streams);
  twin.table = twins_.at(params.table.data);
  RunBoth("EmbedTokens", &Ops::EmbedTokens, params, twin, twins, stream);
}

void PairedOps::HcPre(const HcPreParams& params, Stream& stream) const {
  HcPreParams twin = params;
  OutputTwins twins;
  for (TensorView* view : {&twin.x, &twin.post, &twin.comb}) twins.Add(*view);
  twin.fn = TwinOf(params.fn);
  Scratch scratch(other_.HcPreScratchBytes(params.streams.shape[0], params.streams.shape[1]));
  twin.scratch = scratch.view;
  RunBoth("HcPre", &Ops::HcPre, params, twin, twins, stream);
}

void PairedOps::HcPost(const HcPostParams& params, Stream& stream) const {
  RunWithTwins("HcPost", &Ops::HcPost, params, stream, &HcPostParams::streams);
}

void PairedOps::HcHead(const HcHeadParams& params, Stream& stream) const {
  HcHeadParams twin = params;
  OutputTwins twins;
  twins.Add(twin.x);
  twin.fn = TwinOf(params.fn);
  RunBoth("HcHead", &Ops::HcHead, params, twin, twins, stream);
}

void PairedOps::Linear(const LinearParams& params, Stream& stream) const {
  LinearParams twin = params;
  OutputTwins twins;
  twins.Add(twin.out);
  twin.weight = TwinOf(params.weight);
  const bool rounded = params.round_fp8 && params.weight.rounds_inputs &&
                       params.weight.format != WeightFormat::kBf16;
  const std::string name = "Linear " + std::string(Name(params.weight.format)) +
                           (params.out.dtype == DType::kF32 ? " to f32" : "");
  RunBoth(NameOf(name, rounded), &Ops::Linear, params, twin, twins, stream);
}

void PairedOps::RmsNorm(const RmsNormParams& params, Stream& stream) const {
  RunWithTwins("RmsNorm", &Ops::RmsNorm, params, stream, &RmsNormParams::out);
}

void PairedOps::QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const {
  RunWithTwins("QueryNormRope", &Ops::QueryNormRope, params, stream, &QueryNormRopeParams::q);
}

void PairedOps::WindowLatent(const WindowLatentParams& params, Stream& stream) const {
  RunWithTwins(NameOf("WindowLatent", params.round_fp8), &Ops::WindowLatent, params, stream,
               &WindowLatentParams::latents);
}

void PairedOps::StoreWindow(const StoreWindowParams& params, Stream& stream) const {
  RunWithTwins("StoreWindow", &Ops::StoreWindow, params, stream, &StoreWindowParams::ring);
}

void PairedOps::CompressKv(const CompressKvParams& params, Stream& stream) const {
  const bool rounded = params.row == CompressedRow::kLatent
                           ? params.round_fp8
                           : params.index_rounding != IndexRounding::kNone;
  RunWithTwins(NameOf("CompressKv", rounded), &Ops::CompressKv, params, stream,
               &CompressKvParams::state_kv, &CompressKvParams::state_score,
               &CompressKvParams::entries);
}

void PairedOps::IndexQuery(const IndexQueryParams& params, Stream& stream) const {
  RunWithTwins(NameOf("IndexQuery", params.rounding != IndexRounding::kNone), &Ops::IndexQuery,
               params, stream, &IndexQueryParams::q, &IndexQueryParams::weight);
}

void PairedOps::IndexTopK(const IndexTopKParams& params, Stream& stream) const {
  const int64_t tokens = params.q.shape[0];
  const auto visible = std::span(params.num_visible.as<int32_t>(), static_cast<size_t>(tokens));
  const int64_t most = std::max<int64_t>(1, *std::ranges::max_element(visible));
  Choice choice;
  choice.count = params.top_entries.shape[1];
  choice.candidates = most;
  choice.scores.resize(static_cast<size_t>(tokens * most));
  std::vector<float> got(choice.scores.size());
  IndexTopKParams want = params, twin = params;
  want.scores = TensorView(choice.scores.data(), DType::kF32, {tokens, most});
  twin.scores = TensorView(got.data(), DType::kF32, {tokens, most});
  OutputTwins twins;
  twins.AddUncompared(twin.top_entries);
  const auto compare = [&](OpDifference& difference) {
    for (int64_t t = 0; t < tokens; ++t) {
      const int64_t seen = visible[static_cast<size_t>(t)];
      const auto scores = std::span(choice.scores)
                              .subspan(static_cast<size_t>(t * most), static_cast<size_t>(seen));
      CompareChoice(ChosenOf(twin.top_entries, t), ChosenOf(params.top_entries, t), scores,
                    difference);
      if (seen == 0) continue;
      CompareRows(TensorView(got.data() + t * most, DType::kF32, {1, seen}),
                  TensorView(choice.scores.data() + t * most, DType::kF32, {1, seen}), difference);
    }
  };
  RunBoth("IndexTopK", &Ops::IndexTopK, want, twin, twins, stream, compare);
  KeepChoice(params.top_entries, TensorView(), imposed_ != nullptr ? &imposed_->entries : nullptr,
             choice, choices_.entries);
}

void PairedOps::SparseAttention(const SparseAttentionParams& params, Stream& stream) const {
  RunWithTwins("SparseAttention", &Ops::SparseAttention, params, stream,
               &SparseAttentionParams::out);
}

// The scores by which the CPU chooses (MoeRouteParams).
Choice PairedOps::RoutingOf(const MoeRouteParams& params, Stream& stream) const {
  const int64_t tokens = params.x.shape[0], num_experts = params.gate.n;
  Choice choice;
  choice.count = params.experts.shape[1];
  choice.candidates = num_experts;
  if (params.bias.empty() || goes_on_ == GoesOn::kOtherAlone) return choice;
  choice.scores.resize(static_cast<size_t>(tokens * num_experts));
  base_.ops.Linear({.x = params.x,
                    .weight = params.gate,
                    .out = TensorView(choice.scores.data(), DType::kF32, {tokens, num_experts})},
                   stream);
  CHECK(stream.Synchronize().ok());
  for (size_t i = 0; i < choice.scores.size(); ++i) {
    const double product = static_cast<double>(choice.scores[i]);
    const double score = std::sqrt(product > 20 ? product : std::log1p(std::exp(product)));
    choice.scores[i] =
        static_cast<float>(score) + params.bias.as<float>()[i % static_cast<size_t>(num_experts)];
  }
  return choice;
}

void PairedOps::MoeRoute(const MoeRouteParams& params, Stream& stream) const {
  Choice choice = RoutingOf(params, stream);
  MoeRouteParams twin = params;
  OutputTwins twins;
  twins.AddUncompared(twin.experts);
  twins.AddUncompared(twin.weights);
  twin.gate = TwinOf(params.gate);
  const auto compare = [&](OpDifference& difference) {
    const auto candidates = static_cast<size_t>(choice.scores.empty() ? 0 : choice.candidates);
    for (int64_t t = 0; t < params.x.shape[0]; ++t) {
      const auto got = ChosenOf(twin.experts, t), want = ChosenOf(params.experts, t);
      const auto scores =
          std::span(choice.scores).subspan(static_cast<size_t>(t) * candidates, candidates);
      CompareChoice(got, want, scores, difference);
      if (!std::ranges::equal(got, want)) continue;  // weights of other experts
      CompareRows(twin.weights.Rows(t, 1), params.weights.Rows(t, 1), difference);
    }
  };
  RunBoth("MoeRoute", &Ops::MoeRoute, params, twin, twins, stream, compare);
  KeepChoice(params.experts, params.weights, imposed_ != nullptr ? &imposed_->experts : nullptr,
             choice, choices_.experts);
}

void PairedOps::MoeExperts(const MoeExpertsParams& params, Stream& stream) const {
  MoeExpertsParams twin = params;
  OutputTwins twins;
  twins.Add(twin.out);
  std::vector<ExpertWeights> routed;
  for (const ExpertWeights& expert : params.routed) routed.push_back(TwinOf(expert));
  const ExpertWeights shared = TwinOf(*params.shared);
  twin.routed = routed;
  twin.shared = &shared;
  Scratch scratch(other_.MoeExpertsScratchBytes(params.x.shape[0], params.experts.shape[1],
                                                params.x.shape[1], routed[0].w1.n,
                                                static_cast<int64_t>(routed.size())));
  twin.scratch = scratch.view;
  RunBoth(NameOf("MoeExperts", params.round_fp8), &Ops::MoeExperts, params, twin, twins, stream);
}

}  // namespace lodestone
