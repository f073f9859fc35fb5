// What this build is.
#pragma once

#include <string_view>

namespace lodestone {

std::string_view BuildVersion();   // "0.1.0"
std::string_view BuildCompiler();  // "gcc 12.2.0"
std::string_view BuildType();      // "Release"

}  // namespace lodestone
