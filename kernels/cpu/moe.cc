#include <algorithm>
#include <cmath>

#include "base/logging.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/rows.h"

namespace lodestone::cpu {
namespace {

constexpr int64_t kMaxChosen = 63;     // experts per token
constexpr int64_t kBlockTokens = 512;  // tokens whose experts run together: bounds the scratch
constexpr int64_t kTaskRows = 96;      // rows of one expert in a task
constexpr int64_t kGatePanels = 4;     // panels of w1 and w3 in a task
constexpr int64_t kRouteRows = 64;

// Safe for any g: no overflow above, no loss below.
double Softplus(double g) { return g > 20 ? g : std::log1p(std::exp(g)); }

// The `count` experts with the highest value, ascending; ties to the lower expert, NaN last.
void HighestExperts(const float* values, int64_t num_experts, int64_t count, int32_t* out) {
  const auto better = [&](int64_t a, int64_t b) {
    if (std::isnan(values[a]) || std::isnan(values[b])) {
      return !std::isnan(values[a]) && std::isnan(values[b]);
    }
    return values[a] > values[b];
  };
  int64_t filled = 0;
  for (int64_t e = 0; e < num_experts; ++e) {  // insertion into a short list, best first
    int64_t at = filled;
    while (at > 0 && better(e, out[at - 1])) --at;
    if (at == count) continue;
    filled = std::min(filled + 1, count);
    for (int64_t i = filled - 1; i > at; --i) out[i] = out[i - 1];
    out[at] = static_cast<int32_t>(e);
  }
  std::sort(out, out + count);
}

// Experts and weights of one token from its gate products, which become scores.
void RouteToken(const MoeRouteParams& p, int64_t token, float* scores) {
  const int64_t num_experts = p.gate.n;
  const int64_t count = p.experts.shape[1];
  int32_t* experts = p.experts.row<int32_t>(token);
  float* weights = p.weights.row<float>(token);
  for (int64_t e = 0; e < num_experts; ++e) {
    scores[e] = static_cast<float>(std::sqrt(Softplus(static_cast<double>(scores[e]))));
  }
  if (!p.tid2eid.empty()) {
    std::copy_n(p.tid2eid.row<int32_t>(p.ids.as<int32_t>()[token]), count, experts);
    std::sort(experts, experts + count);
  } else {
    float* biased = scores + num_experts;
    for (int64_t e = 0; e < num_experts; ++e) biased[e] = scores[e] + p.bias.as<float>()[e];
    HighestExperts(biased, num_experts, count, experts);
  }
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(scores[experts[i]]);
  const bool usable = sum > 0 && std::isfinite(sum);
  for (int64_t i = 0; i < count; ++i) {
    const double share =
        usable ? static_cast<double>(scores[experts[i]]) / sum : 1.0 / static_cast<double>(count);
    weights[i] = static_cast<float>(share * static_cast<double>(p.scale));
  }
}

// Rows of one expert that a task handles: slots [first, first + count) of the order by expert.
struct ExpertRows {
  int32_t expert;  // num_experts: the shared one
  int32_t first;
  int32_t count;
};

// Carves arrays from the scratch, each 64-byte aligned.
class Carver {
 public:
  explicit Carver(std::byte* base) : at_(base) {}
  template <typename T>
  T* Take(int64_t count) {
    T* result = reinterpret_cast<T*>(at_);
    at_ += RoundUp(count * static_cast<int64_t>(sizeof(T)), 64);
    return result;
  }

 private:
  std::byte* at_;
};

struct Sizes {
  int64_t tokens;  // of a block
  int64_t chosen;  // routed experts per token
  int64_t hidden;
  int64_t width;
  int64_t experts;                                         // routed
  int64_t slots() const { return tokens * (chosen + 1); }  // (token, expert) pairs, shared included
  int64_t tasks() const { return slots() / kTaskRows + experts + 1; }
  int64_t ScratchBytes() const {
    return slots() * (3 * 4 + (width + hidden) * 4) + (experts + 2) * 4 +
           tasks() * static_cast<int64_t>(sizeof(ExpertRows)) + 8 * 64;
  }
};

// One block of at most kBlockTokens tokens: the (token, expert) pairs are sorted by expert, each
// expert runs over its rows, and each token adds its results in ascending order of experts. A row's
// value does not depend on the rows beside it, so neither does the sum.
class ExpertBlock {
 public:
  ExpertBlock(const Context& context, const MoeExpertsParams& params, int64_t first_token,
              int64_t num_tokens, ThreadPool& pool)
      : simd_(context.simd),
        p_(params),
        pool_(pool),
        first_token_(first_token),
        sizes_{num_tokens, params.experts.shape[1], params.x.shape[1], params.routed[0].w1.n,
               static_cast<int64_t>(params.routed.size())},
        bf16_(IsBf16(params.x)) {
    Carver carver(params.scratch.as<std::byte>());
    token_ = carver.Take<int32_t>(sizes_.slots());
    weight_ = carver.Take<float>(sizes_.slots());
    slot_ = carver.Take<int32_t>(sizes_.slots());
    next_ = carver.Take<int32_t>(sizes_.experts + 2);
    tasks_ = carver.Take<ExpertRows>(sizes_.tasks());
    inner_ = carver.Take<std::byte>(sizes_.slots() * sizes_.width * 4);
    result_ = carver.Take<std::byte>(sizes_.slots() * sizes_.hidden * 4);
  }

  void Run() {
    SortByExpert();
    ListTasks();
    const int64_t gate_parts = CeilDiv(CeilDiv(sizes_.width, kPanelOutputs), kGatePanels);
    const int64_t out_parts = CeilDiv(CeilDiv(sizes_.hidden, kPanelOutputs), 2 * kGatePanels);
    RunTasks(gate_parts, 2, [&](const ExpertRows& rows, int64_t part) { GateAndUp(rows, part); });
    RunTasks(out_parts, 1, [&](const ExpertRows& rows, int64_t part) { Down(rows, part); });
    const int64_t token_ns = sizes_.hidden * (sizes_.chosen + 1) / 8;
    ForRanges(pool_, sizes_.tokens, token_ns, 1, [&](int64_t first, int64_t count) {
      for (int64_t t = first; t < first + count; ++t) Combine(t);
    });
  }

 private:
  const ExpertWeights& Weights(int32_t expert) const {
    return expert < sizes_.experts ? p_.routed[static_cast<size_t>(expert)] : *p_.shared;
  }
  int64_t element_bytes() const { return bf16_ ? 2 : 4; }
  const int32_t* Chosen(int64_t t) const { return p_.experts.row<int32_t>(first_token_ + t); }

  // Counting sort; the shared expert is expert number sizes_.experts and has every token.
  void SortByExpert() {
    std::fill_n(next_, sizes_.experts + 2, 0);
    for (int64_t t = 0; t < sizes_.tokens; ++t) {
      for (int64_t i = 0; i < sizes_.chosen; ++i) ++next_[Chosen(t)[i] + 1];
    }
    if (p_.shared != nullptr) next_[sizes_.experts + 1] = static_cast<int32_t>(sizes_.tokens);
    for (int64_t e = 0; e <= sizes_.experts; ++e) next_[e + 1] += next_[e];
    for (int64_t t = 0; t < sizes_.tokens; ++t) {
      const float* weights = p_.weights.row<float>(first_token_ + t);
      for (int64_t i = 0; i < sizes_.chosen; ++i) Place(t, i, Chosen(t)[i], weights[i]);
      if (p_.shared != nullptr) Place(t, sizes_.chosen, static_cast<int32_t>(sizes_.experts), 1.0f);
    }
  }
  void Place(int64_t t, int64_t i, int32_t expert, float weight) {
    const int32_t slot = next_[expert]++;
    token_[slot] = static_cast<int32_t>(first_token_ + t);
    weight_[slot] = weight;
    slot_[t * (sizes_.chosen + 1) + i] = slot;
  }

  // After sorting, next_[e] is the end of expert e.
  void ListTasks() {
    int32_t begin = 0;
    for (int32_t expert = 0; expert <= sizes_.experts; ++expert) {
      const int32_t end = next_[expert];
      for (; begin < end; begin += static_cast<int32_t>(kTaskRows)) {
        tasks_[num_tasks_++] = {expert, begin,
                                std::min(static_cast<int32_t>(kTaskRows), end - begin)};
      }
      begin = end;
    }
  }

  template <typename F>
  void RunTasks(int64_t parts, int64_t matrices, const F& body) {
    int64_t total_ns = 0;
    for (int64_t i = 0; i < num_tasks_; ++i) {
      total_ns +=
          matrices * GemmNs(tasks_[i].count, sizes_.width, sizes_.hidden, p_.routed[0].w1.format);
    }
    const int64_t count = num_tasks_ * parts;
    if (total_ns < 2 * kMinTaskNs) {
      for (int64_t i = 0; i < count; ++i) body(tasks_[i / parts], i % parts);
    } else {
      pool_.ParallelFor(count, [&](int64_t i) { body(tasks_[i / parts], i % parts); });
    }
  }

  // Outputs [first, first + n) of w1 and w3 for the rows, then the activation into inner_.
  void GateAndUp(const ExpertRows& rows, int64_t part) const {
    constexpr int64_t kOutputs = kGatePanels * kPanelOutputs;
    alignas(64) float gate[kTaskRows * kOutputs];
    alignas(64) float up[kTaskRows * kOutputs];
    const int64_t first = part * kOutputs;
    const int64_t n = std::min(kOutputs, sizes_.width - first);
    const ExpertWeights& weights = Weights(rows.expert);
    Product(weights.w1, rows, part * kGatePanels, n, gate);
    Product(weights.w3, rows, part * kGatePanels, n, up);
    for (int64_t r = 0; r < rows.count; ++r) {
      const int64_t slot = rows.first + r;
      simd_.swiglu(gate + r * kOutputs, up + r * kOutputs, p_.limit, weight_[slot], n, bf16_,
                   inner_ + (slot * sizes_.width + first) * element_bytes());
    }
  }
  void Product(const PackedWeight& weight, const ExpertRows& rows, int64_t first_panel, int64_t n,
               float* out) const {
    GemmArgs args = GemmOf(p_.x, weight, 0, p_.round_fp8);
    SkipPanels(first_panel, &args);
    args.n = n;
    args.rows = token_ + rows.first;
    args.num_rows = rows.count;
    args.out = out;
    args.out_stride = kGatePanels * kPanelOutputs;
    RunGemm(simd_, args);
  }

  void Down(const ExpertRows& rows, int64_t part) const {
    const int64_t first_panel = part * 2 * kGatePanels;
    const TensorView inner(inner_ + rows.first * sizes_.width * element_bytes(), p_.x.dtype,
                           {rows.count, sizes_.width});
    GemmArgs args = GemmOf(inner, Weights(rows.expert).w2, 0, p_.round_fp8);
    SkipPanels(first_panel, &args);
    args.n = std::min(args.n, 2 * kGatePanels * kPanelOutputs);
    args.out =
        result_ + (rows.first * sizes_.hidden + first_panel * kPanelOutputs) * element_bytes();
    args.out_bf16 = bf16_;
    args.out_stride = sizes_.hidden;
    RunGemm(simd_, args);
  }

  void Combine(int64_t t) const {
    const void* rows[kMaxChosen + 1];
    const int64_t count = sizes_.chosen + (p_.shared != nullptr ? 1 : 0);
    for (int64_t i = 0; i < count; ++i) {
      rows[i] = result_ + slot_[t * (sizes_.chosen + 1) + i] * sizes_.hidden * element_bytes();
    }
    simd_.add_rows(rows, count, sizes_.hidden, bf16_, RowPointer(p_.out, first_token_ + t));
  }

  const SimdTable& simd_;
  const MoeExpertsParams& p_;
  ThreadPool& pool_;
  const int64_t first_token_;
  const Sizes sizes_;
  const bool bf16_;
  int32_t* token_ = nullptr;  // [slots]  row of x
  float* weight_ = nullptr;   // [slots]
  int32_t* slot_ = nullptr;   // [tokens, chosen + 1]
  int32_t* next_ = nullptr;   // [experts + 2]
  ExpertRows* tasks_ = nullptr;
  std::byte* inner_ = nullptr;   // act [slots, width]
  std::byte* result_ = nullptr;  // act [slots, hidden]
  int64_t num_tasks_ = 0;
};

}  // namespace

void MoeRoute(const Context& context, const MoeRouteParams& p, ThreadPool& pool) {
  constexpr int64_t kMaxExperts = 1024;
  const int64_t num_experts = p.gate.n;
  CHECK(num_experts <= kMaxExperts)
      << "model has " << num_experts << " experts, limit is " << kMaxExperts;
  const int64_t token_ns =
      GemmNs(1, num_experts, p.x.shape[1], p.gate.format) / 4 + 30 * num_experts;
  ForRanges(pool, p.x.shape[0], token_ns, 1, [&](int64_t first, int64_t count) {
    alignas(64) float products[16 * kMaxExperts];
    const int64_t rows = std::min<int64_t>(kRouteRows, 16 * kMaxExperts / num_experts);
    for (int64_t t = first; t < first + count; t += rows) {
      GemmArgs args = GemmOf(p.x.Rows(t, std::min(rows, first + count - t)), p.gate, 0);
      args.out = products;
      args.out_stride = num_experts;
      RunGemm(context.simd, args);
      for (int64_t r = 0; r < args.num_rows; ++r) {
        float scores[2 * kMaxExperts];  // then the biased ones
        std::copy_n(products + r * num_experts, num_experts, scores);
        RouteToken(p, t + r, scores);
      }
    }
  });
}

int64_t MoeExpertsScratchBytes(int64_t num_tokens, int64_t experts_per_token, int64_t hidden,
                               int64_t width, int64_t num_experts) {
  const Sizes sizes{std::min(num_tokens, kBlockTokens), experts_per_token, hidden, width,
                    num_experts};
  return sizes.ScratchBytes();
}

void MoeExperts(const Context& context, const MoeExpertsParams& p, ThreadPool& pool) {
  CHECK(p.experts.shape[1] <= kMaxChosen)
      << "model has " << p.experts.shape[1] << " experts per token, limit is " << kMaxChosen;
  for (int64_t first = 0; first < p.x.shape[0]; first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, p.x.shape[0] - first);
    ExpertBlock(context, p, first, count, pool).Run();
  }
}

}  // namespace lodestone::cpu
