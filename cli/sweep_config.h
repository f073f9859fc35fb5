#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>

#include "base/config.h"

namespace lodestone {

// `lodestone sweep`: does the server still find a needle at every length and depth?
struct SweepConfig {
  std::string url = "http://127.0.0.1:8080";
  std::string lengths = "300,900,1800,4500,10500";
  std::string depths = "0,0.25,0.5,0.75,1";
  int64_t repeats = 1;
  std::string preset = "none";
  int64_t residues = 0;
  int64_t seed = 1;
  std::string tokenizer_dir;
  std::string lexicon_file;
  std::string json;
  std::string svg;
  std::vector<std::string> panels;
  int64_t concurrency = 1;
  int64_t max_tokens = 48;
  std::string served_model;
  std::string label;
  std::string api_key;
  std::chrono::milliseconds timeout{600'000};
  bool require_all = false;
  // Of clusters that the sweep starts by itself.
  std::string up;
  std::string formats;
  std::string overlay;
  std::string numerics;

  template <typename Visitor>
  void VisitFields(Visitor& visit) {
    visit(url, "url", "http://HOST:PORT of the server", "Server");
    visit(served_model, "served-model", "name of the model; empty = the first of /v1/models",
          "Server");
    visit(api_key, "api-key", "bearer key of the server", "Server", FieldTraits{.secret = true});
    visit(timeout, "timeout", "longest wait for one answer", "Server");
    visit(concurrency, "concurrency", "questions at once", "Server");
    visit(lengths, "lengths", "prompt lengths in tokens: 300,900 or ranges 508..516", "Needles");
    visit(depths, "depths", "places of the needle: 0 the first line, 1 the last", "Needles");
    visit(repeats, "repeats", "questions per length and depth, each with its own needle",
          "Needles");
    visit(residues, "residues",
          "asks at each of 128 lengths in a row around this one, to the token, the depths in turn: "
          "every residue mod 4 and mod 128; 0 = off",
          "Needles");
    visit(preset, "preset",
          "needle: five lengths at depth 0.05; window: around the 128-token window", "Needles",
          FieldTraits{.allowed = {"none", "needle", "window"}});
    visit(seed, "seed", "equal seeds ask equal questions", "Needles");
    visit(tokenizer_dir, "tokenizer",
          "folder with the model's tokenizer.json, for exact lengths; empty = estimated",
          "Needles");
    visit(lexicon_file, "model-lexicon",
          "words the model knows; empty = lexicon.json beside the tokenizer, else built-in ones",
          "Needles");
    visit(max_tokens, "max-tokens", "longest answer", "Needles");
    visit(json, "json",
          "file for the result as JSON, a line for each server; - prints it instead of the table",
          "Output");
    visit(svg, "svg", "file for the result as a heat map, a panel for each server", "Output");
    visit(label, "label", "what is swept, for the heat map and the JSON: fp8", "Output");
    visit(panels, "panel",
          "--json file of an earlier sweep, drawn before this one; may be repeated", "Output");
    visit(require_all, "require-all", "exit 1 unless every needle is found", "Output");
    visit(up, "up",
          "checkpoint folder: sweeps clusters of its own on this machine instead of --url",
          "Own clusters");
    visit(formats, "formats",
          "formats of their index keys, one cluster after another: bf16,fp8,fp4; empty = bf16",
          "Own clusters");
    visit(overlay, "overlay", "safetensors file that replaces tensors", "Own clusters");
    visit(numerics, "numerics", "auto, reference, plain or exact", "Own clusters");
  }

  // INVALID_ARGUMENT for counts out of range and for settings that need another one.
  absl::Status Validate() const;
};

}  // namespace lodestone
