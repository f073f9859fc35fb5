#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/testing/golden_reader.h"
#include "tests/testing/model_runner.h"

namespace lodestone {

// One prompt of tests/golden (tests/golden/MANIFEST.md): `prefix` is "L1027.", say.
struct GoldenCase {
  const GoldenFile& file;
  std::string prefix;

  const GoldenTensor& operator[](const std::string& key) const { return file[prefix + key]; }
  bool Has(const std::string& key) const { return file.Has(prefix + key); }
  std::vector<int32_t> Ids(const std::string& key) const;
};

// What a run of a case produced.
struct GoldenRun {
  std::vector<float> logits_last;                                   // [min(4, L), V]
  std::vector<float> greedy_logits;                                 // [n, V], the golden ids fed
  std::map<int, std::vector<float>> hidden_norm;                    // by layer, [L]
  std::map<int, std::vector<float>> hidden_last;                    // by layer, [M * D]
  std::map<int, std::map<int64_t, std::vector<int32_t>>> selected;  // layer, position: entries
  std::map<int, std::vector<float>> last_scores;  // by layer, index scores of the last position
};

// Prefills the prompt in chunks (0: whole), then feeds the golden continuation token by token for
// as many steps as the case has logits.
GoldenRun RunGoldenCase(ModelRunner& runner, const GoldenCase& golden, int64_t chunk_tokens);

struct GoldenTolerance {
  double logits = 1e-4;        // relative L2, over the last prefill rows and over all decode steps
  double decode_step = 1e-4;   // the same of each decode step
  double hidden_norm = 1e-4;   // relative, every position and layer
  double hidden_outliers = 0;  // share of a layer's positions that may exceed hidden_norm
  double hidden_last = 1e-4;   // relative L2
  double scores = 1e-4;        // relative L2
  double missed = 1;           // share of a layer's golden selections that were not selected
  bool selections = true;      // identical sets where the gap exceeds 1e-4 or is an exact tie
  bool greedy = true;          // argmax of every row equals the golden continuation
};

// Every difference beyond the tolerance, one line each; empty if the run agrees.
std::vector<std::string> Differences(const GoldenCase& golden, const GoldenRun& run,
                                     const GoldenTolerance& tolerance);

// |a - b| / |b| in the L2 norm; infinity if sizes differ or a value is not finite.
double RelativeL2(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace lodestone
