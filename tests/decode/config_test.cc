#include "decode/config.h"

#include <gtest/gtest.h>

namespace lodestone {
namespace {

int PortOf(int64_t grpc_port, int64_t data_port) {
  DecodeConfig config;
  config.grpc_port = grpc_port;
  config.data_port = data_port;
  return DataPort(config).value_or(-1);
}

TEST(DecodeConfigTest, TheDataPortFollowsThatOfGrpcUnlessSet) {
  EXPECT_EQ(DataPort(DecodeConfig()).value(), 8202);
  EXPECT_EQ(PortOf(9000, -1), 9001);
  EXPECT_EQ(PortOf(0, -1), 0);
  EXPECT_EQ(PortOf(9000, 0), 0);
  EXPECT_EQ(PortOf(9000, 7000), 7000);
}

TEST(DecodeConfigTest, APortThatIsNoneIsRefused) {
  EXPECT_EQ(PortOf(65'535, -1), -1);
  EXPECT_EQ(PortOf(9000, 65'536), -1);
  EXPECT_EQ(PortOf(9000, -2), -1);
}

}  // namespace
}  // namespace lodestone
