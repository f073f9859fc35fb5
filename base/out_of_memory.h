#pragma once

#include <new>
#include <string_view>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"

namespace lodestone {

// RESOURCE_EXHAUSTED "no memory WHAT"; without the text if there is no memory for it either.
absl::Status OutOfMemory(std::string_view what) noexcept;

// What `body` returns, a Status or StatusOr; OutOfMemory(what) if an allocation in it fails. For
// the borders of a module where a single request can be refused: the body must leave no trace when
// it throws, which is what destructors are for.
template <typename Body>
std::invoke_result_t<Body> CatchOutOfMemory(std::string_view what, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    return OutOfMemory(what);
  }
}

}  // namespace lodestone
