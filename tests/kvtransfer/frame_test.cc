#include "kvtransfer/frame.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

const std::string kKey(32, 'k');

FrameBytes Slot(uint64_t seq = 5, uint64_t length = 4096) {
  return EncodeFrameHeader({.type = FrameType::kSlot, .number = seq, .length = length}, kKey);
}

TEST(FrameTest, Crc32cIsThatOfTheStandard) {
  constexpr char kText[] = "123456789";
  EXPECT_EQ(Crc32c(std::as_bytes(std::span(kText, 9))), 0xe3069283u);
  const std::array<std::byte, 32> zeros{};
  EXPECT_EQ(Crc32c(zeros), 0x8a9136aau);
}

TEST(FrameTest, ComesBackAsItWasEncoded) {
  const auto header = ParseFrameHeader(Slot(77, 123456789012));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->type, FrameType::kSlot);
  EXPECT_EQ(header->number, 77u);
  EXPECT_EQ(header->length, 123456789012u);
  EXPECT_TRUE(MacMatches(*header, kKey));
  EXPECT_FALSE(MacMatches(*header, std::string(32, 'x')));
}

TEST(FrameTest, EveryFlippedBitIsSeen) {
  const FrameBytes good = Slot();
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    FrameBytes bad = good;
    bad[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_FALSE(ParseFrameHeader(bad).ok()) << "bit " << bit;
  }
}

TEST(FrameTest, HeaderRewrittenWithAFreshCrcFailsTheMac) {
  FrameBytes forged = Slot(5, 4096);
  forged[16] = std::byte{0xff};  // length
  const uint32_t crc = Crc32c(std::span(forged).first(40));
  std::memcpy(&forged[40], &crc, sizeof(crc));
  const auto header = ParseFrameHeader(forged);
  ASSERT_TRUE(header.ok());
  EXPECT_FALSE(MacMatches(*header, kKey));
}

TEST(FrameTest, WrongSizesAndNoiseAreRefused) {
  const FrameBytes good = Slot();
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(ParseFrameHeader(std::span(good).first(size)).ok());
  }
  std::vector<std::byte> longer(good.begin(), good.end());
  longer.push_back(std::byte{0});
  EXPECT_FALSE(ParseFrameHeader(longer).ok());
  std::mt19937 random(1);
  for (int i = 0; i < 100'000; ++i) {
    FrameBytes noise;
    for (std::byte& b : noise) b = static_cast<std::byte>(random());
    if (i % 2 == 0) std::memcpy(noise.data(), good.data(), 8);
    EXPECT_FALSE(ParseFrameHeader(noise).ok());
  }
}

TEST(FrameTest, HelloWithAPayloadIsRefused) {
  const FrameBytes hello =
      EncodeFrameHeader({.type = FrameType::kHello, .number = SessionId(kKey), .length = 1}, kKey);
  EXPECT_FALSE(ParseFrameHeader(hello).ok());
}

TEST(FrameTest, OnlyTheGrantedFrameIsRead) {
  const FrameHeader header = ParseFrameHeader(Slot(5, 4096)).value();
  EXPECT_TRUE(CheckSlotFrame(header, 5, 4096).ok());
  EXPECT_FALSE(CheckSlotFrame(header, 4, 4096).ok());
  EXPECT_FALSE(CheckSlotFrame(header, 6, 4096).ok());
  EXPECT_FALSE(CheckSlotFrame(header, 5, 4095).ok());
  EXPECT_FALSE(CheckSlotFrame(header, 5, uint64_t{1} << 62).ok());
  EXPECT_FALSE(
      CheckSlotFrame({.type = FrameType::kHello, .number = 5, .length = 4096}, 5, 4096).ok());
}

}  // namespace
}  // namespace lodestone
