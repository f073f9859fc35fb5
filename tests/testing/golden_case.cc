#include "tests/testing/golden_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <sstream>

#include "base/logging.h"
#include "kernels/numeric/bf16.h"

namespace lodestone {
namespace {

constexpr double kClearGap = 1e-4;  // golden selections below it hang on summation order

float ValueAt(const TensorView& view, int64_t i) {
  return view.dtype == DType::kBf16 ? Bf16ToFloat(view.as<uint16_t>()[i]) : view.as<float>()[i];
}

// Appends the L2 norm of every row of streams [T, M, D], and keeps the last row.
void WatchStreams(const TensorView& streams, std::vector<float>& norms, std::vector<float>& last) {
  const int64_t width = streams.shape[1] * streams.shape[2];
  for (int64_t token = 0; token < streams.shape[0]; ++token) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double value = ValueAt(streams, token * width + i);
      sum += value * value;
    }
    norms.push_back(static_cast<float>(std::sqrt(sum)));
  }
  last.clear();
  for (int64_t i = 0; i < width; ++i) {
    last.push_back(ValueAt(streams, (streams.shape[0] - 1) * width + i));
  }
}

class DifferenceList {
 public:
  // NaN is a difference.
  void Limit(const std::string& what, double value, double limit) {
    if (value <= limit) return;
    std::ostringstream text;
    text << what << " is " << value << ", tolerance " << limit;
    lines_.push_back(text.str());
  }
  template <typename T>
  void Equal(const std::string& what, const T& found, const T& golden) {
    if (found == golden) return;
    std::ostringstream text;
    text << what << " is " << found << ", golden " << golden;
    lines_.push_back(text.str());
  }
  std::vector<std::string> lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

// Share of positions whose norm differs by more than the tolerance, with the worst of them named.
void CompareNorms(const std::string& key, const std::vector<float>& found,
                  const std::vector<float>& golden, const GoldenTolerance& tolerance,
                  DifferenceList& list) {
  if (found.size() != golden.size()) {
    list.Equal("number of positions of " + key, found.size(), golden.size());
    return;
  }
  double worst = 0;
  size_t worst_position = 0, num_outliers = 0;
  for (size_t i = 0; i < golden.size(); ++i) {
    const double difference = std::abs(static_cast<double>(found[i]) - golden[i]) / golden[i];
    if (!(difference <= tolerance.hidden_norm)) ++num_outliers;
    if (!(difference <= worst)) worst = difference, worst_position = i;
  }
  const double share = static_cast<double>(num_outliers) / static_cast<double>(golden.size());
  std::ostringstream what;
  what << "share of " << key << " beyond " << tolerance.hidden_norm << " (worst " << worst
       << " at position " << worst_position << ")";
  list.Limit(what.str(), share, tolerance.hidden_outliers);
}

std::string Listed(const std::set<int64_t>& values) {
  std::string text;
  for (const int64_t value : values) text += (text.empty() ? "" : " ") + std::to_string(value);
  return text;
}

// Golden selections of one layer: sets of entries, by row of `rows` (positions).
struct GoldenSelections {
  GoldenSelections(const GoldenCase& golden, const std::string& key)
      : rows(golden[key + ".rows"].Ints()), entries(golden[key + ".idx"].Ints()) {}

  std::set<int64_t> At(size_t row) const {
    const size_t width = entries.size() / rows.size();
    std::set<int64_t> chosen(entries.begin() + static_cast<int64_t>(row * width),
                             entries.begin() + static_cast<int64_t>((row + 1) * width));
    chosen.erase(-1);
    return chosen;
  }

  const std::vector<int64_t> rows, entries;
};

std::set<int64_t> SelectedAt(const GoldenRun& run, int layer, int64_t position) {
  const std::vector<int32_t>& found = run.selected.at(layer).at(position);
  std::set<int64_t> got(found.begin(), found.end());
  got.erase(-1);
  return got;
}

void CompareSelections(const GoldenCase& golden, const GoldenRun& run, int layer,
                       const GoldenTolerance& tolerance, DifferenceList& list) {
  const std::string key = "topk.l" + std::to_string(layer);
  if (!golden.Has(key + ".rows")) return;
  const GoldenSelections selections(golden, key);
  const std::vector<float> gaps = golden.Has(key + ".gap")
                                      ? golden[key + ".gap"].Floats()
                                      : std::vector<float>(selections.rows.size(), HUGE_VALF);
  size_t wanted = 0, missed = 0;
  for (size_t i = 0; i < selections.rows.size(); ++i) {
    const std::set<int64_t> want = selections.At(i);
    const std::set<int64_t> got = SelectedAt(run, layer, selections.rows[i]);
    wanted += want.size();
    for (const int64_t entry : want) missed += got.contains(entry) ? 0 : 1;
    if (!tolerance.selections || (gaps[i] != 0 && gaps[i] <= kClearGap)) continue;
    list.Equal(key + " of position " + std::to_string(selections.rows[i]), Listed(got),
               Listed(want));
  }
  if (wanted == 0) return;
  list.Limit(key + " share missed", static_cast<double>(missed) / static_cast<double>(wanted),
             tolerance.missed);
}

std::vector<float> Row(const std::vector<float>& values, int64_t width, int64_t row) {
  return {values.begin() + row * width, values.begin() + (row + 1) * width};
}

}  // namespace

std::vector<int32_t> GoldenCase::Ids(const std::string& key) const {
  const std::vector<int64_t> values = (*this)[key].Ints();
  return {values.begin(), values.end()};
}

double RelativeL2(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return HUGE_VAL;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double delta = static_cast<double>(a[i]) - b[i];
    difference += delta * delta;
    norm += static_cast<double>(b[i]) * b[i];
  }
  if (difference == 0) return 0;
  const double relative = std::sqrt(difference / norm);
  return std::isfinite(relative) ? relative : HUGE_VAL;
}

GoldenRun RunGoldenCase(ModelRunner& runner, const GoldenCase& golden, int64_t chunk_tokens) {
  GoldenRun run;
  const ForwardProbe probe{
      .on_embedding = {},
      .on_layer =
          [&](int layer, const TensorView& streams) {
            WatchStreams(streams, run.hidden_norm[layer], run.hidden_last[layer]);
          },
      .on_selection =
          [&](int layer, const IndexTopKParams& selection) {
            const int64_t width = selection.top_entries.shape[1];
            for (int64_t token = 0; token < selection.top_entries.shape[0]; ++token) {
              const int32_t* entries = selection.top_entries.row<int32_t>(token);
              run.selected[layer][runner.first_position() + token].assign(entries, entries + width);
            }
            if (selection.scores.empty()) return;
            const int64_t last = selection.scores.shape[0] - 1;
            const float* scores = selection.scores.row<float>(last);
            run.last_scores[layer].assign(scores,
                                          scores + selection.num_visible.as<int32_t>()[last]);
          },
      .want_scores = true};
  run.logits_last = runner.Prefill(golden.Ids("input_ids"), chunk_tokens, 4, &probe);

  const std::vector<int32_t> continuation = golden.Ids("greedy.ids");
  const int64_t steps = golden["greedy.logits"].shape[0];
  for (int64_t step = 0; step < steps; ++step) {
    const ModelRunner::Part part{
        .seq = 0, .ids = {&continuation[static_cast<size_t>(step)], 1}, .num_logits = 1};
    const std::vector<float> logits = runner.Feed({&part, 1});
    run.greedy_logits.insert(run.greedy_logits.end(), logits.begin(), logits.end());
  }
  return run;
}

std::vector<std::string> Differences(const GoldenCase& golden, const GoldenRun& run,
                                     const GoldenTolerance& tolerance) {
  DifferenceList list;
  const std::vector<float> logits_last = golden["logits_last"].Floats();
  const int64_t vocab = golden["logits_last"].shape[1];
  list.Limit("logits_last", RelativeL2(run.logits_last, logits_last), tolerance.logits);
  for (const auto& [layer, norms] : run.hidden_norm) {
    const std::string key = "hidden.l" + std::to_string(layer);
    CompareNorms(key + ".norm", norms, golden[key + ".norm"].Floats(), tolerance, list);
    list.Limit(key + ".last", RelativeL2(run.hidden_last.at(layer), golden[key + ".last"].Floats()),
               tolerance.hidden_last);
  }
  for (const auto& [layer, rows] : run.selected) {
    CompareSelections(golden, run, layer, tolerance, list);
    const std::string key = "iscore.l" + std::to_string(layer) + ".last";
    if (!golden.Has(key)) continue;
    const auto scores = run.last_scores.find(layer);
    list.Limit(key,
               RelativeL2(scores != run.last_scores.end() ? scores->second : std::vector<float>(),
                          golden[key].Floats()),
               tolerance.scores);
  }

  const std::vector<int32_t> ids = golden.Ids("greedy.ids");
  const std::vector<float> greedy_logits = golden["greedy.logits"].Floats();
  const int64_t steps = golden["greedy.logits"].shape[0];
  if (tolerance.greedy) {
    const auto last = static_cast<int64_t>(logits_last.size()) / vocab - 1;
    list.Equal("greedy token 0", Argmax(run.logits_last, vocab, last), ids[0]);
  }
  list.Limit("greedy.logits", RelativeL2(run.greedy_logits, greedy_logits), tolerance.logits);
  for (int64_t step = 0; step < steps; ++step) {
    const std::string what = "decode step " + std::to_string(step);
    list.Limit(what + " logits",
               RelativeL2(Row(run.greedy_logits, vocab, step), Row(greedy_logits, vocab, step)),
               tolerance.decode_step);
    if (tolerance.greedy && step + 1 < static_cast<int64_t>(ids.size())) {
      list.Equal("greedy token " + std::to_string(step + 1), Argmax(run.greedy_logits, vocab, step),
                 ids[static_cast<size_t>(step) + 1]);
    }
  }
  return list.lines();
}

}  // namespace lodestone
