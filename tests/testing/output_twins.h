#pragma once

#include <cstddef>
#include <deque>
#include <vector>

#include "runtime/cache_views.h"
#include "runtime/tensor.h"
#include "tests/testing/op_difference.h"

namespace lodestone {

// Copies of what an op is about to write, so that a second backend writes there: its results beside
// the first one's. Host memory.
class OutputTwins {
 public:
  // `view` comes to view a copy of what it views, contents included. Empty ones stay empty.
  void Add(TensorView& view) { AddRange(&view, nullptr, true); }
  void AddUncompared(TensorView& view) { AddRange(&view, nullptr, false); }
  // Rows of bf16 values; others are not compared.
  void Add(RowStore& store) {
    AddRange(&store.payload, store.scale.empty() ? nullptr : &store.scale, store.scale.empty());
  }

  void Compare(OpDifference& difference) const;
  // The copies over the originals.
  void CopyBack() const;

 private:
  struct Twin {
    TensorView original, copy;
    std::byte* begin = nullptr;  // of the original bytes
    std::vector<std::byte> bytes;
    bool compared = false;
  };
  // Two views whose bytes may interleave.
  void AddRange(TensorView* first, TensorView* second, bool compared);

  std::deque<Twin> twins_;
};

}  // namespace lodestone
