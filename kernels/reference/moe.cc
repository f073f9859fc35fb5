#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/reference/gemm.h"
#include "kernels/reference/reference_ops.h"
#include "kernels/reference/rows.h"

namespace lodestone::reference {
namespace {

double Softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// The `count` experts with the highest value, ascending; ties to the lower expert, NaN last.
std::vector<int32_t> HighestExperts(const std::vector<float>& values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (std::isnan(values[a]) || std::isnan(values[b]))
      return !std::isnan(values[a]) && std::isnan(values[b]);
    return values[a] > values[b];
  });
  order.resize(count);
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> ChooseExperts(const MoeRouteParams& p, int64_t t,
                                   const std::vector<float>& scores) {
  const int64_t count = p.experts.shape[1];
  if (!p.tid2eid.empty()) {
    const int32_t* fixed = p.tid2eid.row<int32_t>(p.ids.as<int32_t>()[t]);
    std::vector<int32_t> experts(fixed, fixed + count);
    std::sort(experts.begin(), experts.end());
    return experts;
  }
  std::vector<float> biased = scores;
  for (size_t e = 0; e < biased.size(); ++e) biased[e] += p.bias.as<float>()[e];
  return HighestExperts(biased, count);
}

// One expert over some rows of x [rows, D]; row_weight scales the activation before w2.
class Expert {
 public:
  Expert(const ExpertWeights& weights, const MoeExpertsParams& p, DType act)
      : w1_(weights.w1, p.round_fp8),
        w3_(weights.w3, p.round_fp8),
        w2_(weights.w2, p.round_fp8),
        limit_(p.limit),
        act_(act),
        gate_(weights.w1.n),
        up_(weights.w1.n) {}

  void Run(const float* x, float row_weight, float* y, int64_t dims) {
    w1_.Multiply(x, gate_.data());
    w3_.Multiply(x, up_.data());
    for (size_t i = 0; i < gate_.size(); ++i) {
      const float gate = std::min(Round(act_, gate_[i]), limit_);
      const float up = std::clamp(Round(act_, up_[i]), -limit_, limit_);
      const double g = static_cast<double>(gate);
      const double silu = g / (1.0 + std::exp(-g));
      const double a = silu * static_cast<double>(up) * static_cast<double>(row_weight);
      gate_[i] = Round(act_, static_cast<float>(a));
    }
    w2_.Multiply(gate_.data(), y);
    RoundAll(act_, y, dims);
  }

 private:
  const WideWeight w1_;
  const WideWeight w3_;
  const WideWeight w2_;
  const float limit_;
  const DType act_;
  std::vector<float> gate_;
  std::vector<float> up_;
};

}  // namespace

void MoeRoute(const MoeRouteParams& p) {
  const WideWeight gate(p.gate);
  const int64_t count = p.experts.shape[1];
  std::vector<float> scores(p.gate.n);
  for (int64_t t = 0; t < p.x.shape[0]; ++t) {
    gate.Multiply(ReadRow(p.x, t * p.x.strides[0], p.x.shape[1]).data(), scores.data());
    for (float& score : scores) {
      score = static_cast<float>(std::sqrt(Softplus(static_cast<double>(score))));
    }
    const std::vector<int32_t> experts = ChooseExperts(p, t, scores);
    double sum = 0;
    for (int32_t expert : experts) sum += static_cast<double>(scores[expert]);
    for (int64_t i = 0; i < count; ++i) {
      const double share = sum > 0 && std::isfinite(sum)
                               ? static_cast<double>(scores[experts[i]]) / sum
                               : 1.0 / static_cast<double>(count);
      p.experts.row<int32_t>(t)[i] = experts[i];
      p.weights.row<float>(t)[i] = static_cast<float>(share * static_cast<double>(p.scale));
    }
  }
}

void MoeExperts(const MoeExpertsParams& p) {
  const DType act = p.x.dtype;
  const int64_t num_tokens = p.x.shape[0];
  const int64_t dims = p.x.shape[1];
  std::vector<double> sums(num_tokens * dims);
  std::vector<float> y(dims);
  const auto add = [&](Expert& expert, int64_t t, float weight) {
    expert.Run(ReadRow(p.x, t * p.x.strides[0], dims).data(), weight, y.data(), dims);
    for (int64_t c = 0; c < dims; ++c) sums[t * dims + c] += static_cast<double>(y[c]);
  };
  for (size_t e = 0; e < p.routed.size(); ++e) {  // ascending, so sums are too
    std::vector<std::pair<int64_t, float>> uses;
    for (int64_t t = 0; t < num_tokens; ++t) {
      for (int64_t i = 0; i < p.experts.shape[1]; ++i) {
        if (p.experts.row<int32_t>(t)[i] == static_cast<int32_t>(e)) {
          uses.emplace_back(t, p.weights.row<float>(t)[i]);
        }
      }
    }
    if (uses.empty()) continue;
    Expert expert(p.routed[e], p, act);
    for (const auto& [token, weight] : uses) add(expert, token, weight);
  }
  if (p.shared != nullptr) {
    Expert expert(*p.shared, p, act);
    for (int64_t t = 0; t < num_tokens; ++t) add(expert, t, 1.0f);
  }
  for (int64_t t = 0; t < num_tokens; ++t) {
    const std::vector<float> out(sums.begin() + t * dims, sums.begin() + (t + 1) * dims);
    WriteRow(p.out, t * p.out.strides[0], dims, out.data());
  }
}

}  // namespace lodestone::reference
