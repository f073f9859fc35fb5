#include "tests/gpu/dsa_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/numeric/bf16.h"
#include "kernels/numeric/row_codec.h"
#include "kernels/reference/reference_ops.h"
#include "tests/gpu/check.h"

namespace lodestone::cuda {
namespace {

constexpr int64_t kIndexRows = kPageTokens / 4;

std::vector<float> Widen(const std::vector<uint16_t>& values) {
  std::vector<float> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), Bf16ToFloat);
  return result;
}

int64_t EntriesPerPage(const AttentionShape& shape) {
  return shape.ratio == 0 ? 1 : kPageTokens / shape.ratio;
}

}  // namespace

CaseBatch::CaseBatch(const std::vector<SeqPart>& parts, uint32_t seed) {
  num_seqs = static_cast<int64_t>(parts.size());
  const auto pages_of = [](const SeqPart& part) {
    return (part.first_position + part.num_tokens + kPageTokens - 1) / kPageTokens;
  };
  int64_t owned = 0;
  for (const SeqPart& part : parts) {
    max_pages = std::max<int64_t>(max_pages, pages_of(part));
    owned += pages_of(part);
  }
  num_pages = owned + 3;
  num_slots = num_seqs + 1;
  std::vector<int32_t> pages(num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  block_table.assign(num_seqs * max_pages, -1);
  int64_t next_page = 0;
  for (int64_t b = 0; b < num_seqs; ++b) {
    seq_slot.push_back(static_cast<int32_t>(num_slots - 1 - b));
    seq_first.push_back(static_cast<int32_t>(positions.size()));
    seq_tokens.push_back(parts[b].num_tokens);
    for (int64_t i = 0; i < pages_of(parts[b]); ++i) {
      block_table[b * max_pages + i] = pages[next_page++];
    }
    for (int32_t i = 0; i < parts[b].num_tokens; ++i) {
      positions.push_back(parts[b].first_position + i);
      token_seq.push_back(static_cast<int32_t>(b));
      num_visible.push_back((parts[b].first_position + i + 1) / 4);
    }
  }
}

int64_t CaseBatch::max_visible() const {
  return *std::max_element(num_visible.begin(), num_visible.end());
}

BatchIndex CaseBatch::index() {
  const int64_t tokens = num_tokens();
  return {.positions = View(positions, {tokens}),
          .token_seq = View(token_seq, {tokens}),
          .seq_first = View(seq_first, {num_seqs}),
          .seq_tokens = View(seq_tokens, {num_seqs}),
          .seq_slot = View(seq_slot, {num_seqs}),
          .block_table = View(block_table, {num_seqs, max_pages})};
}

CaseRows::CaseRows(int64_t blocks, int64_t rows, RowBytes bytes)
    : blocks_(blocks),
      rows_(rows),
      stride_((rows * bytes.total() + 15) / 16 * 16 + 48),
      bytes_(bytes),
      memory_(static_cast<size_t>(blocks * stride_), 0xff) {}

std::byte* CaseRows::payload(int64_t block, int64_t row) {
  return reinterpret_cast<std::byte*>(memory_.data()) + block * stride_ + row * bytes_.payload;
}

std::byte* CaseRows::scale(int64_t block, int64_t row) {
  return reinterpret_cast<std::byte*>(memory_.data()) + block * stride_ +
         (rows_ * bytes_.payload + 15) / 16 * 16 + row * bytes_.scale;
}

RowStore CaseRows::store() {
  RowStore store;
  store.payload = TensorView(payload(0, 0), DType::kU8, {blocks_, rows_, bytes_.payload});
  store.payload.strides[0] = stride_;
  if (bytes_.scale > 0) {
    store.scale = TensorView(scale(0, 0), DType::kU8, {blocks_, rows_, bytes_.scale});
    store.scale.strides[0] = stride_;
  }
  return store;
}

DeviceRows CaseRows::Upload() {
  device_ = std::make_unique<DeviceArray<uint8_t>>(memory_);
  const uint8_t* base = device_->data();
  return {.payload = base,
          .scale = bytes_.scale > 0 ? base + (rows_ * bytes_.payload + 15) / 16 * 16 : nullptr,
          .payload_block_stride = stride_,
          .scale_block_stride = stride_,
          .num_blocks = blocks_};
}

std::vector<float> RandomFloats(int64_t n, std::mt19937& random, float factor) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random) * factor;
  return values;
}

std::vector<uint16_t> ToBf16(const std::vector<float>& values) {
  std::vector<uint16_t> result(values.size());
  std::transform(values.begin(), values.end(), result.begin(), FloatToBf16);
  return result;
}

TensorView View(std::vector<uint16_t>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), DType::kBf16, dims);
}
TensorView View(std::vector<float>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), DType::kF32, dims);
}
TensorView View(std::vector<int32_t>& values, std::initializer_list<int64_t> dims) {
  return TensorView(values.data(), DType::kI32, dims);
}

IndexCase::IndexCase(const std::vector<SeqPart>& parts, const IndexShape& index_shape,
                     uint32_t seed)
    : shape(index_shape),
      batch(parts, seed),
      keys(batch.num_pages, kIndexRows,
           IndexKeyRowBytes(index_shape.format, index_shape.head_dim)) {
  std::mt19937 random(seed + 1);
  const auto draw = [&](int64_t n) {
    std::vector<float> values = RandomFloats(n, random);
    if (shape.few_values) {
      for (float& value : values) value = std::round(std::fmin(std::fmax(value, -1), 1));
    }
    return values;
  };
  std::vector<float> queries = draw(batch.num_tokens() * shape.num_heads * shape.head_dim);
  for (int64_t t = 1; t < batch.num_tokens(); t += 3) {
    float* const group = &queries[((t * shape.num_heads + t % shape.num_heads) * shape.head_dim)];
    for (int64_t i = 0; i < kFp4Group; ++i) group[i] = std::ldexp(group[i], -shape.query_spread);
  }
  for (size_t i = 0; shape.round_queries_to_fp4 && i < queries.size(); i += kFp4Group) {
    RoundFp4Group(queries.data() + i, kFp4Group);
  }
  q = ToBf16(queries);
  weight = draw(batch.num_tokens() * shape.num_heads);
  for (int64_t b = 0; b < batch.num_seqs; ++b) {
    const int64_t tokens =
        batch.positions[batch.seq_first[b]] + batch.seq_tokens[b];  // written so far
    for (int64_t entry = 0; entry < tokens / 4; ++entry) {
      const int64_t page = batch.block_table[b * batch.max_pages + entry / kIndexRows];
      std::vector<float> key = draw(shape.head_dim);
      for (float& value : key) value *= shape.key_factor;
      const int64_t small =
          entry % 150 == 5 ? entry % (shape.head_dim / kFp4Group) * kFp4Group : -1;
      for (int64_t i = 0; small >= 0 && i < kFp4Group; ++i) {
        key[small + i] = std::ldexp(key[small + i], -shape.key_spread);
      }
      key = Widen(ToBf16(key));
      if (shape.round_keys_to_fp4) {
        for (int64_t i = 0; i < shape.head_dim; i += kFp4Group) {
          RoundFp4Group(key.data() + i, kFp4Group);
        }
      }
      EncodeIndexKeyRow(shape.format, key.data(), shape.head_dim,
                        keys.payload(page, entry % kIndexRows),
                        keys.scale(page, entry % kIndexRows));
    }
  }
}

IndexScoresArgs IndexCase::Args() {
  device_q = std::make_unique<DeviceArray<uint16_t>>(q);
  device_weight = std::make_unique<DeviceArray<float>>(weight);
  block_table = std::make_unique<DeviceArray<int32_t>>(batch.block_table);
  token_seq = std::make_unique<DeviceArray<int32_t>>(batch.token_seq);
  num_visible = std::make_unique<DeviceArray<int32_t>>(batch.num_visible);
  return {.q = device_q->data(),
          .weight = device_weight->data(),
          .keys = keys.Upload(),
          .format = shape.format,
          .block_table = block_table->data(),
          .max_pages = batch.max_pages,
          .token_seq = token_seq->data(),
          .num_visible = num_visible->data(),
          .num_tokens = batch.num_tokens(),
          .num_seqs = batch.num_seqs,
          .old_keys = batch.num_tokens() == batch.num_seqs,
          .num_heads = shape.num_heads,
          .head_dim = shape.head_dim,
          .max_visible = batch.max_visible()};
}

std::vector<float> IndexCase::ReferenceScores() {
  const int64_t tokens = batch.num_tokens();
  const int64_t columns = std::max<int64_t>(batch.max_visible(), 1);
  std::vector<float> scores(tokens * columns, std::numeric_limits<float>::quiet_NaN());
  std::vector<int32_t> top(tokens);
  IndexTopKParams params;
  params.q = View(q, {tokens, shape.num_heads, shape.head_dim});
  params.weight = View(weight, {tokens, shape.num_heads});
  params.keys = keys.store();
  params.format = shape.format;
  params.batch = batch.index();
  params.num_visible = View(batch.num_visible, {tokens});
  params.top_entries = View(top, {tokens, 1});
  params.scores = View(scores, {tokens, columns});
  reference::IndexTopK(params);
  return scores;
}

AttentionCase::AttentionCase(const std::vector<SeqPart>& parts,
                             const AttentionShape& attention_shape, uint32_t seed)
    : shape(attention_shape),
      batch(parts, seed),
      ring(batch.num_slots, shape.window,
           LatentRowBytes(shape.format, shape.head_dim, shape.rope_dims)),
      entries(batch.num_pages, EntriesPerPage(shape),
              LatentRowBytes(shape.format, shape.head_dim, shape.rope_dims)) {
  std::mt19937 random(seed + 1);
  const int64_t tokens = batch.num_tokens();
  q = ToBf16(RandomFloats(tokens * shape.num_heads * shape.head_dim, random, shape.query_factor));
  latents = ToBf16(RandomFloats(tokens * shape.head_dim, random));
  sink = RandomFloats(shape.num_heads, random);
  for (int64_t i = 0; i < shape.rope_dims / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(shape.rope_dims);
    freqs.push_back(static_cast<float>(std::pow(10000.0, exponent)));
  }
  const auto write = [&](std::byte* payload, std::byte* scale) {
    const std::vector<float> row = Widen(ToBf16(RandomFloats(shape.head_dim, random)));
    EncodeLatentRow(shape.format, row.data(), shape.head_dim, shape.rope_dims, payload, scale);
  };
  for (int64_t b = 0; b < batch.num_seqs; ++b) {
    const int64_t first = batch.positions[batch.seq_first[b]];
    for (int64_t p = std::max<int64_t>(0, first - shape.window); p < first; ++p) {
      const int64_t slot = batch.seq_slot[b];
      write(ring.payload(slot, p % shape.window), ring.scale(slot, p % shape.window));
    }
    if (shape.ratio == 0) continue;
    const int64_t per_page = EntriesPerPage(shape);
    for (int64_t e = 0; e < (first + batch.seq_tokens[b]) / shape.ratio; ++e) {
      const int64_t page = batch.block_table[b * batch.max_pages + e / per_page];
      write(entries.payload(page, e % per_page), entries.scale(page, e % per_page));
    }
  }
  for (int64_t t = 0; shape.ratio == 4 && t < tokens; ++t) {
    std::vector<int32_t> chosen(batch.num_visible[t]);
    std::iota(chosen.begin(), chosen.end(), 0);
    std::shuffle(chosen.begin(), chosen.end(), random);
    chosen.resize(std::min<size_t>(chosen.size(), static_cast<size_t>(shape.k)));
    std::sort(chosen.begin(), chosen.end());
    chosen.resize(static_cast<size_t>(shape.k), -1);
    top_entries.insert(top_entries.end(), chosen.begin(), chosen.end());
  }
}

int64_t AttentionCase::max_keys() const {
  int64_t largest = 1;
  for (int32_t position : batch.positions) {
    int64_t keys = std::min<int64_t>(position + 1, shape.window);
    if (shape.ratio == 4) keys += std::min<int64_t>((position + 1) / 4, shape.k);
    if (shape.ratio == 128) keys += (position + 1) / 128;
    largest = std::max(largest, keys);
  }
  return largest;
}

SparseAttentionArgs AttentionCase::Args() {
  const auto upload = [](auto& arrays, const auto& values) {
    using Array = typename std::remove_reference_t<decltype(arrays)>::value_type::element_type;
    arrays.push_back(std::make_unique<Array>(values));
    return arrays.back()->data();
  };
  return {.q = upload(device_halves, q),
          .latents = upload(device_halves, latents),
          .positions = upload(device_ints, batch.positions),
          .token_seq = upload(device_ints, batch.token_seq),
          .seq_first = upload(device_ints, batch.seq_first),
          .seq_slot = upload(device_ints, batch.seq_slot),
          .block_table = upload(device_ints, batch.block_table),
          .max_pages = batch.max_pages,
          .old_rows = batch.num_tokens() == batch.num_seqs,
          .window = shape.window,
          .ring = ring.Upload(),
          .format = shape.format,
          .ratio = shape.ratio,
          .entries = entries.Upload(),
          .top_entries = upload(device_ints, top_entries),
          .k = shape.ratio == 4 ? shape.k : 0,
          .sink = upload(device_floats, sink),
          .freqs = upload(device_floats, freqs),
          .rope_dims = shape.rope_dims,
          .num_tokens = batch.num_tokens(),
          .num_heads = shape.num_heads,
          .head_dim = shape.head_dim,
          .max_keys = max_keys()};
}

std::vector<uint16_t> AttentionCase::ReferenceOut() {
  const int64_t tokens = batch.num_tokens();
  std::vector<uint16_t> out(q.size());
  SparseAttentionParams params;
  params.q = View(q, {tokens, shape.num_heads, shape.head_dim});
  params.latents = View(latents, {tokens, shape.head_dim});
  params.batch = batch.index();
  params.window = shape.window;
  params.ring = ring.store();
  params.format = shape.format;
  params.ratio = shape.ratio;
  params.entries = entries.store();
  if (shape.ratio == 4) params.top_entries = View(top_entries, {tokens, shape.k});
  params.sink = View(sink, {shape.num_heads});
  params.freqs = View(freqs, {shape.rope_dims / 2});
  params.out = View(out, {tokens, shape.num_heads, shape.head_dim});
  reference::SparseAttention(params);
  return out;
}

std::vector<float> ComputeScoresOneByOne(IndexScoresArgs args) {
  const int64_t tokens = args.num_tokens;
  const DeviceArray<float> scores(static_cast<size_t>(tokens * args.score_stride));
  args.num_tokens = args.num_seqs = 1;
  for (int64_t t = 0; t < tokens; ++t) {
    args.scores = scores.data() + t * args.score_stride;
    LaunchIndexScores(args, IndexScoresPath::kTensorCore, nullptr);
    args.q += args.num_heads * args.head_dim;
    args.weight += args.num_heads;
    ++args.token_seq;
    ++args.num_visible;
  }
  CUDA_CHECK(cudaDeviceSynchronize());
  EXPECT_TRUE(scores.guards_intact());
  return scores.Read();
}

}  // namespace lodestone::cuda
