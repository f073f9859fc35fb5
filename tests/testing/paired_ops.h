#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "kernels/ops.h"
#include "model/weights.h"
#include "tests/testing/forwarding_ops.h"
#include "tests/testing/model_runner.h"
#include "tests/testing/op_difference.h"
#include "tests/testing/output_twins.h"
#include "tests/testing/pass_choices.h"

namespace lodestone {

// A model whose every op runs twice on the same inputs, by two backends, and is compared. One of
// the results goes on into the next op, so no difference feeds another: each op is compared on its
// own, at the values of a real pass. Views and caches are in host memory. Not thread-safe.
class PairedOps final : public ForwardingOps {
 public:
  enum class GoesOn {
    kBase,
    kOther,
    kOtherAlone,  // the base runs nothing, nothing is compared
  };

  // `other` keeps its weights in its own form: `weights`, of the same checkpoint. It finds large
  // ones (matrices, the embedding) there and the rest in the base's memory. All outlive this.
  PairedOps(const LoadedModel& base, const Ops& other, const Weights& weights);

  const LoadedModel& model() const { return base_; }
  // For the passes that follow. With `choices`, those of another pass over the same tokens, a token
  // goes on with what it chose there, whatever it chooses now. They must outlive the passes.
  void SetPass(GoesOn which, const PassChoices* choices) {
    goes_on_ = which;
    imposed_ = choices;
  }
  // Since the last call. Choices are what was chosen, not what was imposed.
  std::map<std::string, OpDifference> TakeDifferences() { return std::exchange(differences_, {}); }
  PassChoices TakeChoices() { return std::exchange(choices_, {}); }

  void EmbedTokens(const EmbedTokensParams& params, Stream& stream) const override;
  void HcPre(const HcPreParams& params, Stream& stream) const override;
  void HcPost(const HcPostParams& params, Stream& stream) const override;
  void HcHead(const HcHeadParams& params, Stream& stream) const override;
  void Linear(const LinearParams& params, Stream& stream) const override;
  void RmsNorm(const RmsNormParams& params, Stream& stream) const override;
  void QueryNormRope(const QueryNormRopeParams& params, Stream& stream) const override;
  void WindowLatent(const WindowLatentParams& params, Stream& stream) const override;
  void StoreWindow(const StoreWindowParams& params, Stream& stream) const override;
  void CompressKv(const CompressKvParams& params, Stream& stream) const override;
  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override;
  void IndexTopK(const IndexTopKParams& params, Stream& stream) const override;
  void SparseAttention(const SparseAttentionParams& params, Stream& stream) const override;
  void MoeRoute(const MoeRouteParams& params, Stream& stream) const override;
  void MoeExperts(const MoeExpertsParams& params, Stream& stream) const override;

 private:
  template <typename Params>
  using Op = void (Ops::*)(const Params&, Stream&) const;

  // `op` with `params` by the base and with `twin`, whose outputs `twins` owns, by the other.
  // `compare` compares what `twins` does not.
  template <typename Params>
  void RunBoth(const std::string& name, Op<Params> op, const Params& params, const Params& twin,
               const OutputTwins& twins, Stream& stream,
               const std::function<void(OpDifference&)>& compare = nullptr) const;
  // The same of an op all of whose inputs are those of the base: `outputs` alone are twins.
  template <typename Params, typename... Outputs>
  void RunWithTwins(const std::string& name, Op<Params> op, const Params& params, Stream& stream,
                    Outputs Params::*... outputs) const;
  // The other's form of a weight.
  PackedWeight TwinOf(const PackedWeight& weight) const;
  ExpertWeights TwinOf(const ExpertWeights& expert) const;
  void PairWeights(const Weights& base, const Weights& other);
  Choice RoutingOf(const MoeRouteParams& params, Stream& stream) const;

  const LoadedModel& base_;
  const Ops& other_;
  std::unordered_map<const void*, TensorView> twins_;  // of weights, by address
  GoesOn goes_on_ = GoesOn::kBase;
  const PassChoices* imposed_ = nullptr;
  mutable std::map<std::string, OpDifference> differences_;
  mutable PassChoices choices_;
};

}  // namespace lodestone
