#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/numeric/hadamard.h"
#include "kernels/numeric/row_codec.h"
#include "tests/testing/forwarding_ops.h"
#include "tests/testing/golden_models.h"
#include "tests/testing/model_runner.h"

// A needle in every entry: the model runs as it is, but the key of entry n points in direction
// n % 128 of 128 orthogonal ones, turned by the sequence's slot, and the token at position p asks
// for direction p % 128. Each token must select every visible entry that it asks for, however the
// prompt was cut, in prefill and in decode: a key that is lost between passes, written to another
// page, or read from another sequence is missed.
namespace lodestone {
namespace {

constexpr int64_t kDims = 128;

int64_t DirectionOf(int64_t number, int64_t slot) { return (number + 31 * slot) % kDims; }

// Row `direction` of a Hadamard matrix: every element is +-1, rows are orthogonal.
std::vector<float> Direction(int64_t direction) {
  std::vector<float> x(kDims, 0.0f);
  x[static_cast<size_t>(direction)] = 1;
  Hadamard(x.data(), kDims);
  for (float& value : x) value = value > 0 ? 1.0f : -1.0f;
  return x;
}

enum class Fault { kNone, kEarlierPassesForgotten };

class PlantedKeys : public ForwardingOps {
 public:
  PlantedKeys(const Ops& inner, Fault fault) : ForwardingOps(inner), fault_(fault) {}

  void CompressKv(const CompressKvParams& params, Stream& stream) const override {
    inner_.CompressKv(params, stream);
    if (params.row != CompressedRow::kIndexKey) return;
    for (int64_t seq = 0; seq < params.batch.num_seqs(); ++seq) {
      const int32_t token = params.batch.seq_first.as<int32_t>()[seq];
      const int64_t begin = params.batch.positions.as<int32_t>()[token];
      const int64_t end = begin + params.batch.seq_tokens.as<int32_t>()[seq];
      const int64_t slot = params.batch.seq_slot.as<int32_t>()[seq];
      // Only the entries that this pass completes: those before them must have stayed.
      for (int64_t n = begin / 4; n < end / 4; ++n)
        Write(params, seq, n, Direction(DirectionOf(n, slot)));
      for (int64_t n = 0; fault_ == Fault::kEarlierPassesForgotten && n < begin / 4; ++n) {
        Write(params, seq, n, std::vector<float>(kDims, 0.0f));
      }
    }
  }

  void IndexQuery(const IndexQueryParams& params, Stream& stream) const override {
    inner_.IndexQuery(params, stream);
    const int64_t heads = params.q.shape[1];
    for (int64_t token = 0; token < params.q.shape[0]; ++token) {
      const int64_t position = params.positions.as<int32_t>()[token];
      const std::vector<float> x =
          Direction(DirectionOf(position, slot_of_token[static_cast<size_t>(token)]));
      auto* query = reinterpret_cast<std::byte*>(params.q.row<uint16_t>(token));
      for (int64_t h = 0; h < heads; ++h) {
        EncodeBf16Row(x.data(), kDims, query + h * kDims * 2);
        params.weight.row<float>(token)[h] = 1;
      }
    }
  }

  mutable std::vector<int64_t> slot_of_token;  // of the pass that comes next

 private:
  static void Write(const CompressKvParams& params, int64_t seq, int64_t entry,
                    const std::vector<float>& key) {
    const int64_t page = params.batch.block_table.row<int32_t>(seq)[entry / 64];
    const auto at = [&](const TensorView& part) {
      return part.empty() ? nullptr : part.row<std::byte>(page) + entry % 64 * part.strides[1];
    };
    EncodeIndexKeyRow(params.index_format, key.data(), kDims, at(params.entries.payload),
                      at(params.entries.scale));
  }

  const Fault fault_;
};

// Runs sequences and counts what their tokens looked for and did not find.
class Search {
 public:
  Search(int64_t num_seqs, int64_t max_context, IndexKeyFormat format, Fault fault = Fault::kNone)
      : num_seqs_(num_seqs),
        ops_(TestModel("mini", "cpu").ops, fault),
        runner_(TestModel("mini", "cpu"), ops_, {.numerics = Numerics::kPlain, .index_key = format},
                {.num_seqs = num_seqs, .max_context = max_context, .max_tokens = max_context}),
        prompt_(ExactGolden("mini", 511).Ids("input_ids")) {
    probe_.on_selection = [this](int, const IndexTopKParams& params) { Check(params); };
    while (std::ssize(prompt_) < max_context) prompt_.push_back(prompt_[prompt_.size() - 511]);
  }

  // The next `count` tokens of each of `parts` (sequence, count), in one pass.
  void Feed(const std::vector<std::pair<int64_t, int64_t>>& parts) {
    std::vector<ModelRunner::Part> feed;
    ops_.slot_of_token.clear();
    for (const auto& [seq, count] : parts) {
      const auto first = static_cast<size_t>(runner_.length(seq));
      feed.push_back(
          {.seq = seq, .ids = std::span(prompt_).subspan(first, static_cast<size_t>(count))});
      ops_.slot_of_token.insert(ops_.slot_of_token.end(), static_cast<size_t>(count),
                                num_seqs_ - seq);
    }
    feed.back().num_logits = 1;
    runner_.Feed(feed, &probe_);
  }

  int64_t looked_for() const { return looked_for_; }
  int64_t missed() const { return missed_; }

 private:
  void Check(const IndexTopKParams& params) {
    const int64_t top_k = params.top_entries.shape[1];
    for (int64_t token = 0; token < params.q.shape[0]; ++token) {
      const int32_t* top = params.top_entries.row<int32_t>(token);
      const int64_t slot = ops_.slot_of_token[static_cast<size_t>(token)];
      const int64_t wanted = DirectionOf(params.batch.positions.as<int32_t>()[token], slot);
      for (int64_t n = 0; n < params.num_visible.as<int32_t>()[token]; ++n) {
        if (DirectionOf(n, slot) != wanted) continue;
        ++looked_for_;
        missed_ += std::find(top, top + top_k, static_cast<int32_t>(n)) == top + top_k;
      }
    }
  }

  const int64_t num_seqs_;
  PlantedKeys ops_;
  ModelRunner runner_;
  std::vector<int32_t> prompt_;
  ForwardProbe probe_;
  int64_t looked_for_ = 0;
  int64_t missed_ = 0;
};

class PlantedNeedleModelTest : public ::testing::TestWithParam<IndexKeyFormat> {};

TEST_P(PlantedNeedleModelTest, EveryEntryIsFoundAcrossChunksPagesAndDecodeSteps) {
  for (const int64_t chunk : {1, 64, 127, 257, 530}) {
    const int64_t length = chunk == 1 ? 270 : 530;  // beyond one page, beyond two
    Search search(1, length + 8, GetParam());
    for (int64_t at = 0; at < length; at += chunk) search.Feed({{0, std::min(chunk, length - at)}});
    for (int step = 0; step < 8; ++step) search.Feed({{0, 1}});
    EXPECT_GT(search.looked_for(), 100);
    EXPECT_EQ(search.missed(), 0) << "chunks of " << chunk;
  }
}

TEST_P(PlantedNeedleModelTest, EveryEntryIsFoundInARaggedBatch) {
  Search search(3, 700, GetParam());
  search.Feed({{0, 300}, {2, 3}});
  search.Feed({{2, 130}, {1, 129}, {0, 2}});
  search.Feed({{1, 1}, {0, 390}, {2, 1}});
  for (int step = 0; step < 8; ++step) search.Feed({{2, 1}, {0, 1}, {1, 1}});
  EXPECT_GT(search.looked_for(), 500);
  EXPECT_EQ(search.missed(), 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, PlantedNeedleModelTest,
                         ::testing::Values(IndexKeyFormat::kBf16, IndexKeyFormat::kFp8,
                                           IndexKeyFormat::kFp4),
                         [](const auto& format) { return std::string(Name(format.param)); });

// What the search is for: keys that do not outlive their pass.
TEST(PlantedNeedleFaultTest, KeysForgottenBetweenPassesAreSeen) {
  Search search(1, 600, IndexKeyFormat::kBf16, Fault::kEarlierPassesForgotten);
  search.Feed({{0, 256}});
  EXPECT_EQ(search.missed(), 0);
  search.Feed({{0, 256}});
  EXPECT_GT(search.missed(), 100);
}

}  // namespace
}  // namespace lodestone
