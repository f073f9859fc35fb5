#include "tests/testing/golden_models.h"

#include <map>
#include <memory>

namespace lodestone {

const Ops& TestBackend(const std::string& name) {
  static const std::unique_ptr<Ops> reference = MakeReferenceOps();
  static const std::unique_ptr<Ops> cpu = MakeCpuOps(2);
  return name == "cpu" ? *cpu : *reference;
}

const LoadedModel& TestModel(const std::string& model, const std::string& backend) {
  static std::map<std::string, std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<LoadedModel>& loaded = models[model + "/" + backend];
  if (loaded == nullptr) {
    loaded = std::make_unique<LoadedModel>(
        model == "needle-tiny" ? NeedleDirectory() : GoldenPath(model), TestBackend(backend));
  }
  return *loaded;
}

const GoldenFile& GoldenFileOf(const std::string& model, int64_t length) {
  static std::map<std::string, std::unique_ptr<GoldenFile>> files;
  const std::string name =
      model + (length == 10500 ? "/golden-10500.safetensors" : "/golden.safetensors");
  std::unique_ptr<GoldenFile>& file = files[name];
  if (file == nullptr) file = std::make_unique<GoldenFile>(GoldenPath(name));
  return *file;
}

GoldenCase ExactGolden(const std::string& model, int64_t length) {
  return {GoldenFileOf(model, length), "L" + std::to_string(length) + "."};
}

}  // namespace lodestone
