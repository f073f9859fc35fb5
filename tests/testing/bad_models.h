#pragma once

#include <functional>
#include <ostream>
#include <string>
#include <vector>

namespace lodestone {

// One way to spoil a model folder, and what the refusal must say.
struct BadModel {
  std::string name;                              // for the test's name
  std::function<void(const std::string&)> make;  // fills an empty folder
  std::vector<std::string> words;                // all in the message: file, tensor or key, values

  friend std::ostream& operator<<(std::ostream& out, const BadModel& bad) {
    return out << bad.name;
  }
};

// A small checkpoint with the tokenizer of the bundled model, which every worker takes.
void WriteGoodModel(const std::string& directory);

// Mutations of that model, each of which must stop the start of a worker. Those whose name begins
// with "Tokenizer" must stop a router too.
std::vector<BadModel> BadModels();

}  // namespace lodestone
