#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/openai_client.h"
#include "cli/sweep_config.h"
#include "cli/sweep_questions.h"
#include "recall/sweep_table.h"

namespace lodestone {

// Asks all, `config.concurrency` at once; `on_cell` is called for each answer, one at a time. The
// table has the kind and the label that the config says.
SweepTable AskAll(const SweepConfig& config, const OpenAiClient& client, const std::string& model,
                  std::vector<SweepQuestion> questions,
                  const std::function<void(const SweepCell&)>& on_cell);

int RunSweep(int argc, const char* const* argv);

}  // namespace lodestone
