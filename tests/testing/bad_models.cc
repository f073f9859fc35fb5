#include "tests/testing/bad_models.h"

#include <sys/stat.h>

#include <cstdint>
#include <cstring>
#include <filesystem>

#include "base/logging.h"
#include "boost/json/array.hpp"
#include "boost/json/parse.hpp"
#include "boost/json/serialize.hpp"
#include "tests/testing/checkpoint_writer.h"

namespace lodestone {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;

constexpr int64_t kVocabSize = 1024;
constexpr char kConfig[] = "config.json";
constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kIndex[] = "model.safetensors.index.json";
constexpr char kFirst[] = "model-00001-of-00002.safetensors";
constexpr char kSecond[] = "model-00002-of-00002.safetensors";

using Fixture = CheckpointFixture;
using Make = std::function<void(const std::string&)>;

void WriteModel(const Fixture& fixture, const std::string& directory) {
  fixture.Write(directory);
  fs::copy_file(LODESTONE_SOURCE_DIR "/models/needle-tiny/tokenizer.json",
                directory + "/" + kTokenizer);
}

// The checkpoint is spoiled before it is written.
Make Spoil(std::function<void(Fixture&)> spoil) {
  return [spoil = std::move(spoil)](const std::string& directory) {
    Fixture fixture(kVocabSize);
    spoil(fixture);
    WriteModel(fixture, directory);
  };
}
Make SetKey(const std::string& key, const json::value& value) {
  return Spoil([=](Fixture& fixture) { fixture.config[key] = value; });
}

// One file of a good model is spoiled.
Make Damage(const std::string& file, std::function<void(const std::string& path)> damage) {
  return [=, damage = std::move(damage)](const std::string& directory) {
    WriteGoodModel(directory);
    damage(directory + "/" + file);
  };
}
Make Contents(const std::string& file, const std::string& bytes) {
  return Damage(file, [=](const std::string& path) { WriteFile(path, bytes); });
}

void ReplaceOnce(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  CHECK(at != std::string::npos) << from << " is not there to be replaced";
  text.replace(at, from.size(), to);
}
Make EditText(const std::string& file, const std::string& from, const std::string& to) {
  return Damage(file, [=](const std::string& path) {
    std::string text = ReadFileBytes(path);
    ReplaceOnce(text, from, to);
    WriteFile(path, text);
  });
}

// The JSON header of a shard is changed, its length field with it.
Make EditHeader(const std::string& shard, std::function<void(std::string& header)> edit) {
  return Damage(shard, [=, edit = std::move(edit)](const std::string& path) {
    const std::string bytes = ReadFileBytes(path);
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    std::string header = bytes.substr(sizeof(length), length);
    edit(header);
    WriteFile(path, SafetensorsBytes(header, std::string_view(bytes).substr(8 + length)));
  });
}
Make EditHeader(const std::string& shard, const std::string& from, const std::string& to) {
  return EditHeader(shard, [=](std::string& header) { ReplaceOnce(header, from, to); });
}
// The description of one tensor is changed.
Make EditTensor(const std::string& shard, const std::string& tensor, const std::string& from,
                const std::string& to) {
  return EditHeader(shard, [=](std::string& header) {
    const size_t begin = header.find("\"" + tensor + "\":");
    CHECK(begin != std::string::npos) << tensor << " is not in " << shard;
    std::string rest = header.substr(begin);
    ReplaceOnce(rest, from, to);
    header.replace(begin, std::string::npos, rest);
  });
}
Make MoveTensor(const std::string& shard, const std::string& tensor,
                std::function<void(uint64_t& begin, uint64_t& end)> move) {
  return EditHeader(shard, [=, move = std::move(move)](std::string& header) {
    json::object root = json::parse(header).as_object();
    json::array& offsets = root.at(tensor).at("data_offsets").as_array();
    auto begin = offsets.at(0).to_number<uint64_t>();
    auto end = offsets.at(1).to_number<uint64_t>();
    move(begin, end);
    offsets = {begin, end};
    header = json::serialize(root);
  });
}
Make HeaderLength(const std::string& shard, uint64_t length) {
  return Damage(shard, [=](const std::string& path) {
    std::string bytes = ReadFileBytes(path);
    std::memcpy(bytes.data(), &length, sizeof(length));
    WriteFile(path, bytes);
  });
}

Make Remove(const std::string& file) {
  return Damage(file, [](const std::string& path) { fs::remove(path); });
}
Make Truncate(const std::string& file, uintmax_t size) {
  return Damage(file, [=](const std::string& path) { fs::resize_file(path, size); });
}
// Sparse: takes no room on the disk.
Make Grow(const std::string& file, uintmax_t size) {
  return Damage(file, [=](const std::string& path) { fs::resize_file(path, size); });
}
Make IsDirectory(const std::string& file) {
  return Damage(file, [](const std::string& path) {
    fs::remove(path);
    fs::create_directory(path);
  });
}
Make IsSymlinkLoop(const std::string& file) {
  return Damage(file, [=](const std::string& path) {
    fs::remove(path);
    fs::create_symlink(file, path);
  });
}
// Opening one for reading waits for a writer, for ever.
Make IsPipe(const std::string& file) {
  return Damage(file, [](const std::string& path) {
    fs::remove(path);
    CHECK_EQ(mkfifo(path.c_str(), 0600), 0);
  });
}

void RemoveTensor(Fixture& fixture, const std::string& name) {
  fixture.shards[fixture.weight_map.at(name)].erase(name);
  fixture.weight_map.erase(name);
}
void SetTensor(Fixture& fixture, const std::string& name, const std::string& dtype,
               const std::vector<int64_t>& shape) {
  const std::string shard =
      fixture.weight_map.contains(name) ? fixture.weight_map.at(name) : kFirst;
  fixture.shards[shard][name] = RawTensor::Zeros(dtype, shape);
  fixture.weight_map[name] = shard;
}
Make Without(const std::string& tensor) {
  return Spoil([=](Fixture& fixture) { RemoveTensor(fixture, tensor); });
}
Make With(const std::string& tensor, const std::string& dtype, const std::vector<int64_t>& shape) {
  return Spoil([=](Fixture& fixture) { SetTensor(fixture, tensor, dtype, shape); });
}
Make MapTo(const std::string& tensor, const std::string& shard) {
  return Spoil([=](Fixture& fixture) { fixture.weight_map[tensor] = shard; });
}

std::string Nested(int depth) { return std::string(static_cast<size_t>(depth), '['); }

std::vector<BadModel> BadFiles() {
  return {
      {"MissingConfig", Remove(kConfig), {kConfig}},
      {"MissingIndex", Remove(kIndex), {"neither", kIndex}},
      {"MissingShard", Remove(kSecond), {kSecond}},
      {"TokenizerMissing", Remove(kTokenizer), {kTokenizer}},
      {"EmptyConfig", Truncate(kConfig, 0), {kConfig}},
      {"EmptyIndex", Truncate(kIndex, 0), {kIndex}},
      {"EmptyShard", Truncate(kFirst, 0), {kFirst, "empty"}},
      {"TokenizerEmpty", Truncate(kTokenizer, 0), {kTokenizer}},
      {"ConfigIsDirectory", IsDirectory(kConfig), {kConfig}},
      {"IndexIsDirectory", IsDirectory(kIndex), {kIndex}},
      {"ShardIsDirectory", IsDirectory(kFirst), {kFirst}},
      {"TokenizerIsDirectory", IsDirectory(kTokenizer), {kTokenizer}},
      {"ConfigIsSymlinkLoop", IsSymlinkLoop(kConfig), {kConfig}},
      {"IndexIsSymlinkLoop", IsSymlinkLoop(kIndex), {kIndex}},
      {"ShardIsSymlinkLoop", IsSymlinkLoop(kSecond), {kSecond}},
      {"TokenizerIsSymlinkLoop", IsSymlinkLoop(kTokenizer), {kTokenizer}},
      {"ConfigIsPipe", IsPipe(kConfig), {kConfig}},
      {"IndexIsPipe", IsPipe(kIndex), {kIndex}},
      {"ShardIsPipe", IsPipe(kFirst), {kFirst, "not a regular file"}},
      {"TokenizerIsPipe", IsPipe(kTokenizer), {kTokenizer, "not a regular file"}},
      {"HugeConfig", Grow(kConfig, uintmax_t{1} << 32), {kConfig, "4294967296"}},
      {"HugeIndex", Grow(kIndex, uintmax_t{1} << 32), {kIndex, "4294967296"}},
      {"TokenizerHuge", Grow(kTokenizer, uintmax_t{1} << 32), {kTokenizer, "4294967296"}},
  };
}

std::vector<BadModel> BadShards() {
  const std::string offsets = "\"data_offsets\":[";
  return {
      {"TruncatedInLength", Truncate(kFirst, 7), {kFirst, "7 bytes"}},
      {"TruncatedInHeader", Truncate(kFirst, 100), {kFirst, "header claims"}},
      {"TruncatedInData", Truncate(kSecond, 5000), {kSecond, "tensor 'layers.1.", "truncated"}},
      {"TruncatedByOneByte",
       Damage(kSecond,
              [](const std::string& path) { fs::resize_file(path, fs::file_size(path) - 1); }),
       {kSecond, "tensor 'layers.1.", "truncated"}},
      {"SurplusByte",
       Damage(kSecond,
              [](const std::string& path) { fs::resize_file(path, fs::file_size(path) + 1); }),
       {kSecond, "tensors end at"}},
      {"HeaderLengthHuge", HeaderLength(kFirst, uint64_t{1} << 62), {kFirst, "header claims"}},
      {"HeaderLengthWraps", HeaderLength(kFirst, ~uint64_t{0}), {kFirst, "header claims"}},
      {"HeaderLengthZero", HeaderLength(kFirst, 0), {kFirst, "not valid JSON"}},
      {"HeaderIsNoise", Contents(kFirst, std::string(4096, '\7')), {kFirst, "header claims"}},
      {"HeaderIsNotJson", EditHeader(kFirst, "{", "<"), {kFirst, "not valid JSON"}},
      {"HeaderHasNan",
       EditTensor(kFirst, "head.weight", offsets, "\"scale\":NaN," + offsets),
       {kFirst, "not valid JSON"}},
      {"HeaderIsDeep",
       Contents(kFirst, SafetensorsBytes("{\"x\":" + Nested(100'000), "")),
       {kFirst, "not valid JSON"}},
      {"TensorTwiceInHeader",
       EditHeader(kFirst, "\"head.weight\":", "\"hc_head_base\":"),
       {kFirst, "hc_head_base", "occurs twice"}},
      {"TensorHasNoDtype",
       EditTensor(kFirst, "head.weight", "\"dtype\":\"BF16\",", ""),
       {kFirst, "head.weight", "dtype"}},
      {"DtypeUnknown",
       EditTensor(kFirst, "head.weight", "BF16", "F64"),
       {kFirst, "head.weight", "F64"}},
      {"ShapeIsNegative",
       EditTensor(kFirst, "head.weight", "[1024,32]", "[-1024,32]"),
       {kFirst, "head.weight", "not a size"}},
      {"ShapeWraps",
       EditTensor(kFirst, "head.weight", "[1024,32]", "[4611686018427387904,32]"),
       {kFirst, "head.weight", "shape too large"}},
      {"ShapeDoesNotMatchBytes",
       EditTensor(kFirst, "head.weight", "[1024,32]", "[1024,33]"),
       {kFirst, "head.weight", "65536 bytes", "67584"}},
      {"OffsetsAreThree",
       EditTensor(kFirst, "head.weight", offsets, offsets + "0,"),
       {kFirst, "head.weight", "data_offsets"}},
      {"OffsetsBackward",
       MoveTensor(kFirst, "head.weight",
                  [](uint64_t& begin, uint64_t& end) { std::swap(begin, end); }),
       {kFirst, "head.weight", "not a range"}},
      {"OffsetsOverlap",
       MoveTensor(kFirst, "hc_head_scale",
                  [](uint64_t& begin, uint64_t& end) { begin -= 4, end -= 4; }),
       {kFirst, "hc_head_scale", "overlaps"}},
      {"OffsetsBeyondTheFile",
       MoveTensor(kFirst, "norm.weight",
                  [](uint64_t& begin, uint64_t& end) { begin += 1 << 20, end += 1 << 20; }),
       {kFirst, "norm.weight", "truncated"}},
      {"OffsetsAreShort",
       MoveTensor(kFirst, "norm.weight", [](uint64_t& begin, uint64_t&) { begin += 8; }),
       {kFirst, "norm.weight", "56 bytes", "64"}},
      {"OffsetsLeaveAHole",
       MoveTensor(kFirst, "hc_head_scale",
                  [](uint64_t& begin, uint64_t& end) { begin += 4, end += 4; }),
       {kFirst, "hc_head_scale", "hole"}},
  };
}

std::vector<BadModel> BadTensors() {
  return {
      {"TensorMissing", Without("layers.1.attn.wkv.weight"), {kIndex, "layers.1.attn.wkv.weight"}},
      {"IndexerKeyMissing",
       Without("layers.0.attn.indexer.compressor.ape"),
       {kIndex, "layers.0.attn.indexer.compressor.ape", "missing"}},
      {"TensorSurplus",
       With("layers.0.attn.wq_a.bias", "BF16", {16}),
       {kFirst, "layers.0.attn.wq_a.bias", "surplus"}},
      {"LayerSurplus",
       With("layers.2.attn_norm.weight", "BF16", {32}),
       {"layers.2.attn_norm.weight", "surplus"}},
      {"DtypeWrong",
       With("layers.1.attn_norm.weight", "F32", {32}),
       {kSecond, "layers.1.attn_norm.weight", "F32[32]", "BF16[32]"}},
      {"Transposed",
       With("layers.0.attn.wq_a.weight", "BF16", {32, 16}),
       {kFirst, "layers.0.attn.wq_a.weight", "BF16[32, 16]", "BF16[16, 32]"}},
      {"RankWrong",
       With("norm.weight", "BF16", {32, 1}),
       {kFirst, "norm.weight", "BF16[32, 1]", "BF16[32]"}},
      {"TensorEmpty",
       With("layers.0.attn.attn_sink", "F32", {0}),
       {kFirst, "layers.0.attn.attn_sink", "F32[0]", "F32[2]"}},
      {"QuantisedWeight",
       With("layers.1.attn.wq_a.weight", "F8_E4M3", {16, 32}),
       {kSecond, "layers.1.attn.wq_a.weight", "FP8"}},
      {"ExpertOutOfRange",
       Spoil([](Fixture& f) { f.shards[kFirst]["layers.0.ffn.gate.tid2eid"].bytes[8 * 7] = 4; }),
       {kFirst, "layers.0.ffn.gate.tid2eid", "expert 4"}},
      {"ExpertNegative",
       Spoil([](Fixture& f) {
         f.shards[kFirst]["layers.0.ffn.gate.tid2eid"].bytes[8 * 7 + 7] = '\x80';
       }),
       {kFirst, "layers.0.ffn.gate.tid2eid"}},
      {"TensorInBothShards",
       Spoil(
           [](Fixture& f) { f.shards[kSecond]["head.weight"] = f.shards[kFirst]["head.weight"]; }),
       {kSecond, "head.weight", kFirst}},
      {"TensorNotInIndex",
       Spoil([](Fixture& f) { f.weight_map.erase("head.weight"); }),
       {kFirst, "head.weight", kIndex}},
      {"IndexNamesAbsentTensor",
       Spoil([](Fixture& f) { f.shards[kFirst].erase("head.weight"); }),
       {kFirst, "head.weight", "missing"}},
      {"IndexNamesAbsentShard",
       MapTo("head.weight", "model-00003-of-00003.safetensors"),
       {"head.weight", "model-00003-of-00003.safetensors"}},
      {"IndexNamesOtherShard", MapTo("head.weight", kSecond), {kFirst, "head.weight", kSecond}},
      {"IndexLeavesTheFolder",
       MapTo("head.weight", "../../etc/passwd"),
       {kIndex, "head.weight", "../../etc/passwd"}},
      {"IndexIsNotAMap", Contents(kIndex, "{\"weight_map\": [1]}"), {kIndex, "weight_map"}},
      {"IndexMapsToANumber",
       Contents(kIndex, "{\"weight_map\": {\"head.weight\": 3}}"),
       {kIndex, "head.weight"}},
      {"IndexIsDeep", Contents(kIndex, "{\"weight_map\":" + Nested(100'000)), {kIndex}},
      {"IndexRepeatsATensor",
       EditText(kIndex, "\"head.weight\":", "\"hc_head_base\":"),
       {kIndex, "hc_head_base", "occurs twice"}},
  };
}

std::vector<BadModel> BadConfigs() {
  const auto beyond = int64_t{1} << 40;
  return {
      {"ConfigIsNotJson", EditText(kConfig, "{", "<"), {kConfig, "not valid JSON"}},
      {"ConfigIsAList", Contents(kConfig, "[]"), {kConfig, "not a JSON object"}},
      {"ConfigRepeatsAKey",
       EditText(kConfig, "\"head_dim\":", "\"o_groups\":"),
       {kConfig, "o_groups", "occurs twice"}},
      {"ConfigLacksAKey",
       EditText(kConfig, "\"q_lora_rank\"", "\"q_lora\""),
       {kConfig, "q_lora_rank"}},
      {"ConfigHasNan", EditText(kConfig, "\"hc_eps\":1E-6", "\"hc_eps\":NaN"), {kConfig}},
      {"ConfigSizeIsText", SetKey("hidden_size", "32"), {kConfig, "hidden_size", "\"32\""}},
      {"ConfigSizeIsFractional", SetKey("head_dim", 128.5), {kConfig, "head_dim", "integer"}},
      {"ConfigSizeIsNegative", SetKey("moe_intermediate_size", -16), {kConfig, "-16"}},
      {"ConfigSizeIsHuge",
       SetKey("hidden_size", beyond),
       {kConfig, "hidden_size", "1099511627776"}},
      {"ConfigNumberIsHuge", SetKey("rope_theta", 1e300), {kConfig, "rope_theta"}},
      {"ConfigRatioUnknown", SetKey("compress_ratios", {4, 8}), {kConfig, "compress_ratios", "8"}},
      {"ConfigRatiosAreNotAList", SetKey("compress_ratios", true), {kConfig, "compress_ratios"}},
      {"ConfigScalingIsNull", SetKey("rope_scaling", nullptr), {kConfig, "rope_scaling"}},
      {"ConfigOfAnotherFamily", SetKey("model_type", "llama"), {kConfig, "llama", "deepseek_v4"}},
      {"ConfigBiasOfTheWrongType", SetKey("attention_bias", "no"), {kConfig, "attention_bias"}},
      {"ConfigQuantisationIsText", SetKey("quantization_config", "fp8"), {"quantization_config"}},
      {"ConfigOfAnotherShape", SetKey("q_lora_rank", 32), {kFirst, "wq_a.weight", "BF16[32, 32]"}},
      {"ConfigHasMoreLayers", SetKey("num_hidden_layers", 3), {kIndex, "layers.2.", "missing"}},
  };
}

std::vector<BadModel> BadTokenizers() {
  return {
      {"TokenizerIsNotJson", EditText(kTokenizer, "{", "<"), {kTokenizer, "not valid JSON"}},
      {"TokenizerIsDeep", Contents(kTokenizer, "{\"model\":" + Nested(100'000)), {kTokenizer}},
      {"TokenizerIsCutOff", Truncate(kTokenizer, 10'000), {kTokenizer, "not valid JSON"}},
      {"TokenizerIsAnotherKind",
       EditText(kTokenizer, "\"BPE\"", "\"Unigram\""),
       {kTokenizer, "Unigram", "BPE"}},
      {"TokenizerMergeIsUnknown",
       EditText(kTokenizer, "\"a r\"", "\"a \u2603\""),
       {kTokenizer, "merges[0]"}},
      {"TokenizerIdIsText",
       EditText(kTokenizer, "\"id\": 0", "\"id\": \"0\""),
       {kTokenizer, "added_tokens[0]"}},
      {"TokenizerIdIsHuge",
       EditText(kTokenizer, "\"id\": 0", "\"id\": 9223372036854775807"),
       {kTokenizer, "added_tokens[0]", "9223372036854775807"}},
      {"TokenizerRegexIsInvalid",
       EditText(kTokenizer, "\\\\p{N}{1,3}", "(\\\\p{N}{1,3}"),
       {kTokenizer, "pre_tokenizer"}},
      {"TokenizerOfALargerModel",
       Spoil([](Fixture& f) { f = Fixture(512); }),
       {kTokenizer, "1024", "vocab_size", "512"}},
  };
}

}  // namespace

void WriteGoodModel(const std::string& directory) { WriteModel(Fixture(kVocabSize), directory); }

std::vector<BadModel> BadModels() {
  std::vector<BadModel> all;
  for (const auto& part : {BadFiles(), BadShards(), BadTensors(), BadConfigs(), BadTokenizers()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace lodestone
