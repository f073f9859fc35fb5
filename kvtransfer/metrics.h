// What a worker counts about hand-offs; names and labels are those of monitoring/registry.h.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "kvtransfer/manifest.h"
#include "monitoring/metrics.h"

namespace lodestone {

// The phases of a hand-off that kvtransfer measures. On prefill: pack; wait (offer until granted);
// move (granted until committed); adopt (last commit until adopted). On decode: wait (granted until
// all bytes are there); scatter; adopt.
enum class HandoffPhase : uint8_t { kPack, kWait, kMove, kScatter, kAdopt };

// The pair that a link joins, as label values.
struct LinkPair {
  std::string prefill;
  std::string decode;
};

// Worker loop only.
class HandoffMetrics {
 public:
  // `metrics` is not owned; null counts nothing.
  explicit HandoffMetrics(Metrics* metrics) : metrics_(metrics) {}

  void ObservePhase(const LinkPair& pair, HandoffPhase phase, std::chrono::nanoseconds time);
  void AddBytes(const LinkPair& pair, const Manifest& kinds);
  // Rows and digests of one offer or one request, compared kind by kind.
  void CountComparison(const Manifest& here, const Manifest& offered);
  // A hand-off ended. OK counts as adopted, CANCELLED as aborted, the rest as failed with its
  // reason.
  void CountEnd(const absl::Status& status);
  // The link of the pair is up over `transport`; it is down.
  void SetLinkUp(const LinkPair& pair, std::string_view transport);
  void SetLinkDown(const LinkPair& pair);
  // The pair has no link any more, not even a closing one.
  void ForgetLink(const LinkPair& pair);

 private:
  using PairKey = std::pair<std::string, std::string>;
  // Handles are kept: to look a series up takes longer than to count.
  struct OfPair {
    std::map<HandoffPhase, HistogramMetric> phases;
    std::map<size_t, CounterMetric> bytes;  // by kind
  };
  MetricLabels LinkLabels(const LinkPair& pair) const;

  Metrics* const metrics_;
  std::map<PairKey, OfPair> pairs_;
  std::map<std::pair<size_t, bool>, CounterMetric> rows_;     // by kind, and whether they agree
  std::map<std::pair<size_t, bool>, CounterMetric> digests_;  // the same
  std::map<PairKey, std::string> transports_;  // of the last link
};

}  // namespace lodestone
