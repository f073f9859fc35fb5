#include "base/out_of_memory.h"

#include <string>

namespace lodestone {

absl::Status OutOfMemory(std::string_view what) noexcept {
  try {
    return absl::ResourceExhaustedError("no memory " + std::string(what));
  } catch (const std::bad_alloc&) {
    return absl::Status(absl::StatusCode::kResourceExhausted, "");
  }
}

}  // namespace lodestone
