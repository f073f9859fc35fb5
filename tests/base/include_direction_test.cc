// Holds the source tree to the picture of who may include whom.
//
//   router   prefill, decode, cli      binaries
//     |            |
//     |          worker                what prefill and decode workers share
//     |        |         |
//     |      engine   kvtransfer       one step of the model | moves cache bytes
//     |      |     \     |
//     |    model    \    |
//     |      |       \   |
//    text  kernels  kvcache
//      |       \       /
//      |        runtime
//      +--------- base                 (proto and monitoring: for binaries and kvtransfer only)

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Folders = std::set<std::string>;

// What each folder may include besides itself.
const std::map<std::string, Folders>& AllowedFolders() {
  static const std::map<std::string, Folders> allowed = {
      {"base", {}},
      {"proto", {"base"}},
      {"monitoring", {"base"}},
      {"runtime", {"base"}},
      {"text", {"base"}},
      {"recall", {"base", "text"}},
      {"kernels", {"base", "runtime"}},
      {"kvcache", {"base", "runtime"}},
      {"model", {"base", "runtime", "kernels"}},
      {"engine", {"base", "runtime", "kernels", "kvcache", "model"}},
      {"kvtransfer", {"base", "runtime", "kernels", "kvcache", "monitoring", "proto"}},
      {"router", {"base", "text", "recall", "monitoring", "proto"}},
      {"worker",
       {"base", "runtime", "text", "kernels", "kvcache", "model", "engine", "kvtransfer",
        "monitoring", "proto"}},
      {"prefill",
       {"base", "runtime", "text", "kernels", "kvcache", "model", "engine", "kvtransfer",
        "monitoring", "proto", "worker"}},
      {"decode",
       {"base", "runtime", "text", "kernels", "kvcache", "model", "engine", "kvtransfer",
        "monitoring", "proto", "worker"}},
  };
  return allowed;
}

// These may include every folder of the product.
const Folders kUnrestricted = {"cli", "bench"};

// A header or call that may occur only in the files that match.
struct Confinement {
  const char* what;
  std::regex pattern;        // searched in each line
  std::regex allowed_files;  // matched against the whole root-relative path
};

const std::vector<Confinement>& Confinements() {
  static const std::vector<Confinement> confinements = {
      {"protobuf and gRPC types",
       std::regex(R"(#include\s+["<](.*\.pb\.h|grpcpp/|grpc/|google/protobuf/))"),
       std::regex(
           "proto/[a-z_]*\\.(h|cc)"
           "|worker/(grpc_server|registration|admin_service|host|worker_metrics)[a-z_]*\\.(h|cc)"
           "|(prefill|decode)/(service|main)[a-z_]*\\.(h|cc)"
           "|router/(grpc_service|worker_client|registry_service|router|main)[a-z_]*\\.(h|cc)"
           "|kvtransfer/(grpc_link|proto_convert)[a-z_]*\\.(h|cc)"
           "|(cli|bench)/.*")},
      {"CUDA headers", std::regex(R"(#include\s+["<](cuda|nccl|cublas|cooperative_groups))"),
       std::regex("runtime/.*|kernels/cuda/.*|kvtransfer/nccl/.*|bench/gpu/.*")},
      {"getenv", std::regex(R"(\b(secure_)?getenv\s*\()"), std::regex("base/config\\.cc")},
  };
  return confinements;
}

// The tree under test, as root-relative path and text.
struct SourceFile {
  std::string path;
  std::vector<std::string> lines;
};

std::string FolderOf(const std::string& path) { return path.substr(0, path.find('/')); }

bool IsProductFolder(const std::string& folder) {
  return AllowedFolders().contains(folder) || kUnrestricted.contains(folder);
}

std::vector<SourceFile> ReadSources(const fs::path& root) {
  static const std::set<std::string> kExtensions = {".h", ".cc", ".cu", ".cuh"};
  std::vector<SourceFile> files;
  for (const fs::directory_entry& folder : fs::directory_iterator(root)) {
    if (!folder.is_directory() || !IsProductFolder(folder.path().filename())) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      if (!kExtensions.contains(entry.path().extension())) continue;
      SourceFile file{fs::relative(entry.path(), root).generic_string(), {}};
      std::ifstream stream(entry.path());
      for (std::string line; std::getline(stream, line);) file.lines.push_back(line);
      files.push_back(std::move(file));
    }
  }
  return files;
}

// Names without folder of all our headers: including one so is not from the root.
using HeaderNames = std::set<std::string>;

void CheckDirection(const SourceFile& file, const std::string& line, const HeaderNames& headers,
                    const std::string& place, std::vector<std::string>* problems) {
  static const std::regex kInclude(R"(^\s*#\s*include\s+"([^"]+)\")");
  std::smatch match;
  if (!std::regex_search(line, match, kInclude)) return;
  const std::string included = match[1];
  const std::string from = FolderOf(file.path);
  const std::string to = FolderOf(included);
  if (included.starts_with(".") || headers.contains(included)) {
    problems->push_back(place + "include of \"" + included + "\" is not from the root");
  } else if (to == "tests") {
    problems->push_back(place + "the product must not include tests");
  } else if (from != to && IsProductFolder(to) && !kUnrestricted.contains(from) &&
             !AllowedFolders().at(from).contains(to)) {
    problems->push_back(place + from + " must not include " + to);
  }
}

std::vector<std::string> FindProblems(const std::vector<SourceFile>& files) {
  std::vector<std::string> problems;
  HeaderNames headers;
  for (const SourceFile& file : files) headers.insert(fs::path(file.path).filename());
  for (const SourceFile& file : files) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string place = file.path + ":" + std::to_string(i + 1) + ": ";
      CheckDirection(file, file.lines[i], headers, place, &problems);
      for (const Confinement& confinement : Confinements()) {
        if (std::regex_search(file.lines[i], confinement.pattern) &&
            !std::regex_match(file.path, confinement.allowed_files)) {
          problems.push_back(place + confinement.what + " must stay out of this file");
        }
      }
    }
  }
  return problems;
}

TEST(IncludeDirectionTest, SourceTreeFollowsThePicture) {
  const std::vector<SourceFile> files = ReadSources(LODESTONE_SOURCE_DIR);
  ASSERT_GT(files.size(), 20u) << "the source tree was not found at " << LODESTONE_SOURCE_DIR;
  std::string list;
  for (const std::string& problem : FindProblems(files)) list += problem + "\n";
  EXPECT_THAT(list, IsEmpty());
}

TEST(IncludeDirectionTest, PictureHasNoCycle) {
  // Every folder must be reachable only downwards: take away folders whose needs are all gone.
  std::map<std::string, Folders> left = AllowedFolders();
  Folders done;
  for (bool progress = true; progress;) {
    progress = std::erase_if(left, [&](const auto& entry) {
                 const auto& [folder, needs] = entry;
                 if (!std::includes(done.begin(), done.end(), needs.begin(), needs.end()))
                   return false;
                 done.insert(folder);
                 return true;
               }) > 0;
  }
  EXPECT_TRUE(left.empty());
}

TEST(IncludeDirectionTest, EachKindOfBreachIsFound) {
  const std::vector<SourceFile> files = {
      {"kvcache/a.cc", {"", "#include \"model/model_config.h\""}},
      {"prefill/a.cc", {"#include \"decode/worker.h\""}},
      {"engine/a.cc", {"#include \"../base/ids.h\""}},
      {"text/detokenizer.h", {}},
      {"text/a.cc", {"#include \"detokenizer.h\"", "#include \"xxhash.h\""}},
      {"router/a.cc", {"#include \"runtime/tensor.h\"", "#include \"tests/testing/x.h\""}},
      {"decode/scheduler.cc", {"#include \"proto/lodestone/v1/worker.pb.h\""}},
      {"model/a.cc", {"#include <cuda_runtime.h>"}},
      {"router/main.cc", {"  const char* home = std::getenv(\"HOME\");"}},
      {"base/a.cc",
       {"#include \"base/b.h\"", "#include <vector>", "#include <absl/status/status.h>"}},
      {"cli/a.cc", {"#include \"router/policy.h\"", "#include \"decode/worker.h\""}},
  };
  const std::vector<std::string> problems = FindProblems(files);
  EXPECT_EQ(problems.size(), 9u);
  EXPECT_THAT(problems, Contains("kvcache/a.cc:2: kvcache must not include model"));
  EXPECT_THAT(problems, Contains("prefill/a.cc:1: prefill must not include decode"));
  EXPECT_THAT(problems, Contains(HasSubstr("engine/a.cc:1: include of")));
  EXPECT_THAT(problems, Contains(HasSubstr("text/a.cc:1: include of")));
  EXPECT_THAT(problems, Contains("router/a.cc:1: router must not include runtime"));
  EXPECT_THAT(problems, Contains("router/a.cc:2: the product must not include tests"));
  EXPECT_THAT(problems, Contains(HasSubstr("decode/scheduler.cc:1: protobuf")));
  EXPECT_THAT(problems, Contains(HasSubstr("model/a.cc:1: CUDA")));
  EXPECT_THAT(problems, Contains(HasSubstr("router/main.cc:1: getenv")));
}

}  // namespace
}  // namespace lodestone
