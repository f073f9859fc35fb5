// RETURN_IF_ERROR and ASSIGN_OR_RETURN: hand an absl::Status or StatusOr error to the caller.
//
//   RETURN_IF_ERROR(table.Reserve(num_tokens));
//   ASSIGN_OR_RETURN(Lease lease, decode.Reserve(request));
//   ASSIGN_OR_RETURN((std::pair<int, int> range), ParseRange(text));  // parentheses if lhs has
//   commas
#pragma once

#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#define LODESTONE_MACRO_CONCAT_INNER(a, b) a##b
#define LODESTONE_MACRO_CONCAT(a, b) LODESTONE_MACRO_CONCAT_INNER(a, b)

// Strips one optional pair of parentheses around `x`.
#define LODESTONE_UNPAREN(x) LODESTONE_UNPAREN_STEP(LODESTONE_UNPAREN_KEEP x)
#define LODESTONE_UNPAREN_KEEP(...) LODESTONE_UNPAREN_KEEP __VA_ARGS__
#define LODESTONE_UNPAREN_STEP(...) LODESTONE_UNPAREN_LAST(__VA_ARGS__)
#define LODESTONE_UNPAREN_LAST(...) LODESTONE_UNPAREN_DROP_##__VA_ARGS__
#define LODESTONE_UNPAREN_DROP_LODESTONE_UNPAREN_KEEP

#define LODESTONE_RETURN_IF_ERROR(return_word, expr) \
  do {                                               \
    ::absl::Status lodestone_status_ = (expr);       \
    if (!lodestone_status_.ok()) [[unlikely]] {      \
      return_word lodestone_status_;                 \
    }                                                \
  } while (false)

#define LODESTONE_ASSIGN_OR_RETURN(return_word, result, lhs, expr) \
  auto result = (expr);                                            \
  if (!result.ok()) [[unlikely]] {                                 \
    return_word std::move(result).status();                        \
  }                                                                \
  LODESTONE_UNPAREN(lhs) = *std::move(result)

#define LODESTONE_UNIQUE_RESULT LODESTONE_MACRO_CONCAT(lodestone_statusor_, __COUNTER__)

#undef RETURN_IF_ERROR
#undef ASSIGN_OR_RETURN
#define RETURN_IF_ERROR(expr) LODESTONE_RETURN_IF_ERROR(return, expr)
#define ASSIGN_OR_RETURN(lhs, expr) \
  LODESTONE_ASSIGN_OR_RETURN(return, LODESTONE_UNIQUE_RESULT, lhs, expr)

// The same inside a coroutine (router).
#define CO_RETURN_IF_ERROR(expr) LODESTONE_RETURN_IF_ERROR(co_return, expr)
#define CO_ASSIGN_OR_RETURN(lhs, expr) \
  LODESTONE_ASSIGN_OR_RETURN(co_return, LODESTONE_UNIQUE_RESULT, lhs, expr)
