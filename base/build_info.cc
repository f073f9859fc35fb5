#include "base/build_info.h"

namespace lodestone {

std::string_view BuildVersion() { return LODESTONE_VERSION; }

std::string_view BuildCompiler() {
#ifdef __clang__
  return "clang " __clang_version__;
#else
  return "gcc " __VERSION__;
#endif
}

std::string_view BuildType() { return LODESTONE_BUILD_TYPE; }

}  // namespace lodestone
