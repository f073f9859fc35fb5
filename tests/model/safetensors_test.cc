#include "model/safetensors.h"

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoint_writer.h"
#include "tests/testing/temp_dir.h"

namespace lodestone {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::vector<SafetensorsEntry>> Parse(const std::string& file) {
  return ParseSafetensorsHeader(std::as_bytes(std::span(file)), file.size());
}

std::string Entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + "\": {\"dtype\": \"" + dtype + "\", \"shape\": " + shape +
         ", \"data_offsets\": " + offsets + "}";
}

// One F32 tensor of two elements, `x`, with one of its parts replaced.
std::string OneTensor(const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
  std::string header = "{" + Entry("x", dtype, shape, offsets) + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return SafetensorsBytes(header, std::string(8, '\1'));
}

TEST(SafetensorsTest, EntriesComeInFileOrder) {
  std::string header = "{\"__metadata__\": {\"format\": \"pt\"}, " +
                       Entry("b", "F32", "[2]", "[4, 12]") + ", " +
                       Entry("a", "BF16", "[1, 2]", "[0, 4]") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const auto entries = Parse(SafetensorsBytes(header, std::string(12, '\0')));
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "a");
  EXPECT_EQ((*entries)[0].dtype, DType::kBf16);
  EXPECT_EQ((*entries)[0].rank, 2);
  EXPECT_EQ((*entries)[1].begin, 8 + header.size() + 4);
  EXPECT_EQ((*entries)[1].end - (*entries)[1].begin, 8u);
}

TEST(SafetensorsTest, FileGivesTensorsThatViewIt) {
  const TempDir dir;
  RawTensor tensor = RawTensor::Zeros("I64", {2});
  tensor.bytes[8] = 7;
  WriteFile(dir / "x.safetensors", SafetensorsBytes({{"x", tensor}}));
  const auto file = SafetensorsFile::Open(dir / "x.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorView view = (*file)->Tensor((*file)->entries().at(0));
  EXPECT_EQ(view.ShapeString(), "I64[2]");
  EXPECT_EQ(view.as<int64_t>()[1], 7);
  (*file)->DropPages((*file)->bytes());
  EXPECT_EQ(view.as<int64_t>()[1], 7);  // read again from the file
}

TEST(SafetensorsTest, EmptyTensorsAndScalarsAreFine) {
  EXPECT_TRUE(Parse(SafetensorsBytes({{"empty", RawTensor::Zeros("F32", {0, 3})},
                                      {"scalar", RawTensor::Zeros("F32", {})}}))
                  .ok());
}

struct BadFile {
  std::string name;
  std::string bytes;
  std::string words;
};

class BadSafetensorsTest : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadSafetensorsTest, IsRefused) {
  const absl::Status status = Parse(GetParam().bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().words));
}

std::string WithLength(uint64_t length) {
  std::string bytes = OneTensor("F32", "[2]", "[0, 8]");
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string WithHeader(const std::string& header) {
  return SafetensorsBytes(header, std::string(8, '\0'));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadSafetensorsTest,
    ::testing::Values(
        BadFile{"Empty", "", "0 bytes"}, BadFile{"SevenBytes", "1234567", "7 bytes"},
        BadFile{"HeaderBeyondFile", WithLength(1000), "header claims 1000"},
        BadFile{"HeaderLengthWraps", WithLength(~uint64_t{0}), "header claims"},
        BadFile{"HeaderLengthNearWrap", WithLength(~uint64_t{0} - 7), "header claims"},
        BadFile{"NotJson", WithHeader("{\"x\": "), "not valid JSON"},
        BadFile{"NotAnObject", WithHeader("[1, 2]"), "not a JSON object"},
        BadFile{"DeepNesting", WithHeader(std::string(5000, '[')), "not valid JSON"},
        BadFile{"DeepTensor",
                WithHeader("{\"x\": " + std::string(20, '[') + std::string(20, ']') + "}"),
                "not valid JSON"},
        BadFile{"NameTwice",
                WithHeader("{" + Entry("x", "F32", "[1]", "[0, 4]") + ", " +
                           Entry("x", "F32", "[1]", "[4, 8]") + "}"),
                "'x' occurs twice"},
        BadFile{"TensorNotAnObject", WithHeader("{\"x\": 3}"), "tensor 'x'"},
        BadFile{"UnknownField",
                WithHeader("{\"x\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8], "
                           "\"stride\": 1}}"),
                "unknown field 'stride'"},
        BadFile{"NoDType", WithHeader("{\"x\": {\"shape\": [2], \"data_offsets\": [0, 8]}}"),
                "tensor 'x' has no dtype"},
        BadFile{"UnknownDType", OneTensor("F64", "[1]", "[0, 8]"), "dtype 'F64'"},
        BadFile{"NoShape", WithHeader("{\"x\": {\"dtype\": \"F32\", \"data_offsets\": [0, 8]}}"),
                "tensor 'x' has no shape"},
        BadFile{"NegativeDim", OneTensor("F32", "[-2]", "[0, 8]"), "tensor 'x' has a dimension"},
        BadFile{"FractionalDim", OneTensor("F32", "[2.0]", "[0, 8]"), "tensor 'x' has a dimension"},
        BadFile{"TextDim", OneTensor("F32", "[\"2\"]", "[0, 8]"), "tensor 'x' has a dimension"},
        BadFile{"FiveDims", OneTensor("F32", "[1, 1, 1, 1, 2]", "[0, 8]"), "5 dimensions"},
        BadFile{"ShapeWraps", OneTensor("F32", "[4611686018427387904, 4]", "[0, 8]"),
                "tensor 'x' has a shape too large"},
        BadFile{"ShapeWrapsToZero", OneTensor("F32", "[4611686018427387904, 4, 0]", "[0, 8]"),
                "tensor 'x' has a shape too large"},
        BadFile{"NoOffsets", WithHeader("{\"x\": {\"dtype\": \"F32\", \"shape\": [2]}}"),
                "tensor 'x' has no data_offsets"},
        BadFile{"ThreeOffsets", OneTensor("F32", "[2]", "[0, 4, 8]"), "no data_offsets"},
        BadFile{"NegativeOffset", OneTensor("F32", "[2]", "[-8, 0]"), "not a range"},
        BadFile{"BackwardOffsets", OneTensor("F32", "[2]", "[8, 0]"), "not a range"},
        BadFile{"BeyondData", OneTensor("F32", "[2]", "[8, 16]"), "truncated"},
        BadFile{"OffsetNearWrap",
                OneTensor("F32", "[2]", "[18446744073709551608, 18446744073709551615]"),
                "truncated"},
        BadFile{"TooFewBytes", OneTensor("F32", "[3]", "[0, 8]"),
                "has 8 bytes, its shape needs 12"},
        BadFile{"Hole", OneTensor("F32", "[1]", "[4, 8]"), "hole of 4 bytes"},
        BadFile{"SurplusData", OneTensor("F32", "[1]", "[0, 4]"), "tensors end at"},
        BadFile{"Overlap",
                WithHeader("{" + Entry("x", "F32", "[2]", "[0, 8]") + ", " +
                           Entry("y", "F32", "[1]", "[4, 8]") + "    }"),
                "'y' overlaps"}),
    [](const auto& parameter) { return parameter.param.name; });

TEST(SafetensorsTest, EveryTruncationIsRefused) {
  const std::string bytes = SafetensorsBytes(
      {{"a", RawTensor::Zeros("F32", {3})}, {"b", RawTensor::Zeros("BF16", {2, 2})}});
  ASSERT_TRUE(Parse(bytes).ok());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Parse(bytes.substr(0, length)).ok()) << length;
  }
}

// Whatever one byte of a header becomes, the parser neither crashes nor gives a range outside.
TEST(SafetensorsTest, SpoiledBytesNeverGiveARangeOutsideTheFile) {
  const std::string bytes = SafetensorsBytes(
      {{"a", RawTensor::Zeros("F32", {3})}, {"b", RawTensor::Zeros("I64", {2, 2})}});
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string spoiled = bytes;
      spoiled[at] = static_cast<char>(value);
      const auto entries = Parse(spoiled);
      if (!entries.ok()) continue;
      for (const SafetensorsEntry& entry : *entries) {
        ASSERT_LE(entry.begin, entry.end);
        ASSERT_LE(entry.end, spoiled.size());
      }
    }
  }
}

TEST(SafetensorsTest, FilesThatAreNoFilesAreNamed) {
  const TempDir dir;
  EXPECT_EQ(SafetensorsFile::Open(dir / "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir.path()).status().message()),
              HasSubstr(dir.path()));
  WriteFile(dir / "empty", "");
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir / "empty").status().message()),
              HasSubstr("empty: the file is empty"));
}

}  // namespace
}  // namespace lodestone
