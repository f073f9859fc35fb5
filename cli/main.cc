#include <cstdio>
#include <string>
#include <string_view>

#include "base/build_info.h"
#include "cli/ask.h"
#include "cli/convert.h"
#include "cli/drain.h"
#include "cli/inspect.h"
#include "cli/plan.h"
#include "cli/status.h"
#include "cli/sweep.h"
#include "cli/synthesize.h"
#include "cli/up.h"
#include "cli/verify.h"

namespace lodestone {
namespace {

struct Command {
  std::string_view name;
  std::string_view summary;
  int (*run)(int argc, const char* const* argv);
};

constexpr Command kCommands[] = {
    {"up", "run a whole cluster on this machine", RunUp},
    {"ask", "one question, the answer streamed", RunAsk},
    {"sweep", "does the server find a needle at every length and depth?", RunSweep},
    {"verify", "does the cluster answer as one process does, bit for bit?", RunVerify},
    {"status", "a router and its workers: state, memory, queues", RunStatus},
    {"drain", "take workers out of service, or restart all, without a failed request", RunDrain},
    {"plan", "what fits into a worker's memory, by index-key format", RunPlan},
    {"inspect", "check a checkpoint and show what is in it", RunInspect},
    {"convert", "write a checkpoint with FP8 or FP4 weights, or with BF16 ones", RunConvert},
    {"synthesize", "write a checkpoint of any shape with random weights", RunSynthesize},
};

void PrintHelp(std::FILE* out) {
  std::fprintf(out,
               "lodestone: prefill-decode disaggregated serving of DeepSeek-V4-class models\n\n");
  for (const Command& command : kCommands) {
    std::fprintf(out, "  lodestone %-10s %s\n", command.name.data(), command.summary.data());
  }
  std::fprintf(
      out,
      "\nA cluster, a question, a sweep:\n"
      "  lodestone up --model models/needle-tiny --http-port 8080\n"
      "  lodestone ask \"The secret code for Vera Nolan is ZEBRA-4492-OMEGA.\n"
      "  What is the secret code for Vera Nolan?\"\n"
      "  lodestone sweep --tokenizer models/needle-tiny\n"
      "\nlodestone COMMAND --help shows its settings; each is also an environment variable\n"
      "(LODESTONE_HTTP_PORT) and a line of a file (--config FILE).\n");
}

int Main(int argc, const char* const* argv) {
  const std::string_view name = argc > 1 ? argv[1] : "";
  if (name == "--version") {
    std::printf("lodestone %s\n", std::string(BuildVersion()).c_str());
    return 0;
  }
  if (name == "--help" || name == "-h" || name == "help") {
    PrintHelp(stdout);
    return 0;
  }
  for (const Command& command : kCommands) {
    if (name == command.name) return command.run(argc - 1, argv + 1);
  }
  if (!name.empty()) std::fprintf(stderr, "lodestone: no command \"%s\"\n\n", argv[1]);
  PrintHelp(stderr);
  return 2;
}

}  // namespace
}  // namespace lodestone

int main(int argc, char** argv) { return lodestone::Main(argc, argv); }
