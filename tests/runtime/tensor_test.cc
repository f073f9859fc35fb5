#include "runtime/tensor.h"

#include <vector>

#include <gtest/gtest.h>

namespace lodestone {
namespace {

TEST(TensorViewTest, DenseStridesCountElementsFromTheLastAxis) {
  std::vector<float> data(2 * 3 * 5);
  const TensorView view(data.data(), DType::kF32, {2, 3, 5});
  EXPECT_EQ(view.rank, 3);
  EXPECT_EQ(view.strides[0], 15);
  EXPECT_EQ(view.strides[1], 5);
  EXPECT_EQ(view.strides[2], 1);
  EXPECT_EQ(view.num_elements(), 30);
  EXPECT_EQ(view.num_bytes(), 120);
  EXPECT_EQ(view.row<float>(1), data.data() + 15);
  EXPECT_EQ(view.ShapeString(), "F32[2, 3, 5]");
}

TEST(TensorViewTest, RowsOfAStridedViewKeepTheStride) {
  std::vector<uint16_t> data(4 * 8);
  TensorView view(data.data(), DType::kBf16, {4, 3});
  view.strides[0] = 8;
  const TensorView rows = view.Rows(1, 2);
  EXPECT_EQ(rows.as<uint16_t>(), data.data() + 8);
  EXPECT_EQ(rows.shape[0], 2);
  EXPECT_EQ(rows.row<uint16_t>(1), data.data() + 16);
}

TEST(TensorViewTest, AViewWithoutMemoryIsEmpty) {
  EXPECT_TRUE(TensorView().empty());
  EXPECT_TRUE(TensorView(nullptr, DType::kI32, {0, 4}).empty());
  EXPECT_EQ(TensorView(nullptr, DType::kI32, {0, 4}).num_elements(), 0);
}

TEST(DTypeTest, SizesAndNamesOfEveryType) {
  const struct {
    DType dtype;
    int64_t bytes;
    std::string_view name;
  } cases[] = {{DType::kF32, 4, "F32"},        {DType::kBf16, 2, "BF16"},
               {DType::kF8E4M3, 1, "F8_E4M3"}, {DType::kF8E8M0, 1, "F8_E8M0"},
               {DType::kI8, 1, "I8"},          {DType::kU8, 1, "U8"},
               {DType::kI32, 4, "I32"},        {DType::kI64, 8, "I64"}};
  for (const auto& c : cases) {
    EXPECT_EQ(BytesPerElement(c.dtype), c.bytes) << c.name;
    EXPECT_EQ(Name(c.dtype), c.name);
  }
}

}  // namespace
}  // namespace lodestone
