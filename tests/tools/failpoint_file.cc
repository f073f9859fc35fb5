// In the worker binaries of fault tests: arms failpoints while the process runs. A test puts a list
// (as in LODESTONE_FAILPOINTS) into the file $FAULTS_DIR/lodestone-prefill or
// $FAULTS_DIR/lodestone-decode; one process of that name takes it away and arms it.

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/failpoint.h"
#include "base/logging.h"

namespace lodestone {
namespace {

void TakeLists(const std::string& path) {
  const std::string own = path + "." + std::to_string(getpid());
  while (true) {
    if (rename(path.c_str(), own.c_str()) == 0) {
      std::stringstream list;
      list << std::ifstream(own).rdbuf();
      CHECK(failpoint::ArmList(list.str()).ok()) << list.str();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

const bool started = [] {
  const char* const directory = getenv("FAULTS_DIR");
  if (directory == nullptr) return false;
  const std::string path = std::string(directory) + "/" + program_invocation_short_name;
  std::thread([path] { TakeLists(path); }).detach();
  return true;
}();

}  // namespace
}  // namespace lodestone
