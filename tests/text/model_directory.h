// A model's directory with nothing but files in its folder `encoding`.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

namespace lodestone::testing_text {

class ModelDirectory {
 public:
  ModelDirectory()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("model_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_ / "encoding" / "tests");
  }
  ~ModelDirectory() { std::filesystem::remove_all(path_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(path_ / "encoding" / name, std::ios::binary) << content;
  }
  void Remove(const std::string& name) { std::filesystem::remove(path_ / "encoding" / name); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace lodestone::testing_text
