// Flags and configuration file together. Input: one argument a line, up to a line "--"; the rest is
// the file, if it is not empty.
// Properties: every outcome is a status or a configuration; an accepted configuration, written out
// as a file and read again, is the same configuration, each value from the file.
#include <sys/mman.h>
#include <unistd.h>

#include "base/config.h"
#include "tests/fuzz/fuzz_input.h"

namespace lodestone {
namespace {

struct Config {
  bool verify = false;
  int64_t port = 8000;
  double rate = 0.5;
  std::string index_k = "bf16";
  std::string api_key;
  std::vector<std::string> peers;
  ByteSize cache{.bytes = 1 << 20};
  std::chrono::milliseconds timeout{30'000};
  LoggingConfig logging;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(verify, "verify-weights", "checks every byte", "Model");
    visit(port, "http-port", "port of the API", "Network");
    visit(rate, "rate", "requests per second", "Limits");
    visit(index_k, "index-k", "storage of index keys", "Cache",
          FieldTraits{.allowed = {"bf16", "fp8", "fp4"}});
    visit(api_key, "name", "what the model is called", "Network");
    visit(peers, "peers", "addresses of workers", "Network");
    visit(cache, "cache-bytes", "size of the cache", "Cache");
    visit(timeout, "queue-timeout", "longest wait", "Limits");
    logging.VisitFields(visit);
  }
};

// A file in memory, by the path under which this process can open it.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view text) : fd_(memfd_create("config", 0)) {
    CHECK_LE(0, fd_);
    CHECK_EQ(write(fd_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

absl::StatusOr<ParseOutcome> Parse(const std::vector<std::string>& arguments) {
  std::vector<const char*> argv = {"fuzz"};
  for (const std::string& argument : arguments) argv.push_back(argument.c_str());
  Config config;
  return ParseConfig("fuzz", "a program", static_cast<int>(argv.size()), argv.data(), config);
}

void CheckRoundTrip(const std::vector<ConfigValue>& values) {
  std::string text;
  for (const ConfigValue& value : values) text += value.name + " = " + value.value + "\n";
  const MemoryFile file(text);
  const absl::StatusOr<ParseOutcome> again = Parse({"--config", file.path()});
  CHECK(again.ok()) << again.status() << "\n" << text;
  CHECK_EQ(again->values.size(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CHECK_EQ(again->values[i].value, values[i].value);
    CHECK_EQ(again->values[i].origin, "file");
  }
}

void Run(FuzzInput input) {
  std::vector<std::string> arguments;
  while (!input.empty()) {
    const std::string argument(input.Until('\n'));
    if (argument == "--") break;
    // Files of this machine are not part of the input.
    if (argument.find("--config") != std::string::npos) return;
    // As the system hands them over.
    arguments.push_back(argument.substr(0, argument.find('\0')));
  }
  const MemoryFile file(input.Rest());
  if (!input.empty()) arguments.insert(arguments.begin(), "--config=" + file.path());
  const absl::StatusOr<ParseOutcome> outcome = Parse(arguments);
  if (!outcome.ok()) {
    CHECK(outcome.status().code() == absl::StatusCode::kInvalidArgument) << outcome.status();
    CHECK(!outcome.status().message().empty());
    return;
  }
  CHECK_EQ(outcome->exit, !outcome->text.empty());
  if (!outcome->values.empty()) CheckRoundTrip(outcome->values);
}

}  // namespace
}  // namespace lodestone

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lodestone::Run(lodestone::FuzzInput(data, size));
  return 0;
}
