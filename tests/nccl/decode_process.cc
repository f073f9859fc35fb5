#include "tests/nccl/decode_process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lodestone::nccl {
namespace {

// "questions answers gpu ctas slot_bytes num_slots tokens": file descriptors and options.
constexpr char kVariable[] = "NCCL_TEST_DECODE_PROCESS";
constexpr int kAnswerLimitMs = 30'000;

enum What : int64_t { kReserve, kAdoptedAt, kSample, kFree, kPhases };
struct Question {
  int64_t what = 0;
  int64_t a = 0;
  int64_t b = 0;
};

bool WriteAll(int pipe, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = write(pipe, bytes, size);
    if (written <= 0) return false;
    bytes += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

// False at the end of the pipe, or if nothing comes for `limit_ms` (-1: any time).
bool ReadAll(int pipe, void* data, size_t size, int limit_ms) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    pollfd ready{.fd = pipe, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, limit_ms) <= 0) return false;
    const ssize_t got = read(pipe, bytes, size);
    if (got <= 0) return false;
    bytes += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAnswer(int pipe, const std::string& answer) {
  const auto size = static_cast<int64_t>(answer.size());
  return WriteAll(pipe, &size, sizeof(size)) && WriteAll(pipe, answer.data(), answer.size());
}

template <typename T>
std::string AsBytes(const T* data, size_t count) {
  return {reinterpret_cast<const char*>(data), count * sizeof(T)};
}

std::string Reply(DecodeEnd& decode, const Question& question) {
  switch (question.what) {
    case kReserve: {
      const auto leases = decode.Reserve(question.a, static_cast<int>(question.b));
      return AsBytes(leases.data(), leases.size());
    }
    case kAdoptedAt: {
      const TimePoint at = decode.adopted_at();
      return AsBytes(&at, 1);
    }
    case kSample: {
      const auto bytes = decode.Sample(LeaseId(static_cast<uint64_t>(question.a)), question.b);
      return AsBytes(bytes.data(), bytes.size());
    }
    case kFree:
      decode.Free({LeaseId(static_cast<uint64_t>(question.a))});
      return "";
    default:
      return decode.Phases();
  }
}

}  // namespace

std::unique_ptr<Endpoint> MakeWakingEndpoint(Side side, DeviceId device, int ctas,
                                             std::shared_ptr<Waker> waker) {
  return Endpoint::Create({.device = device.cuda,
                           .side = side,
                           .ctas = ctas,
                           .max_links = 2,
                           .wake = [waker = std::move(waker)] { waker->Wake(); }})
      .value();
}

DecodeProcess::DecodeProcess(const EndOptions& end, int ctas) {
  int questions[2];
  int answers[2];
  EXPECT_EQ(pipe(questions), 0);
  EXPECT_EQ(pipe(answers), 0);
  const std::string variable =
      absl::StrCat(kVariable, "=", questions[0], " ", answers[1], " ", end.gpu.cuda, " ", ctas, " ",
                   end.slot_bytes, " ", end.num_slots, " ", end.tokens);
  pid_ = fork();
  if (pid_ == 0) {
    close(questions[1]);
    close(answers[0]);
    putenv(strdup(variable.c_str()));
    execl("/proc/self/exe", "nccl_tests", nullptr);
    _exit(127);
  }
  close(questions[0]);
  close(answers[1]);
  questions_ = questions[1];
  answers_ = answers[0];
  const std::string up = Answer();  // "instance address"
  const size_t space = up.find(' ');
  if (space == std::string::npos) return;
  instance_ = InstanceId::FromString(up.substr(0, space)).value();
  address_ = up.substr(space + 1);
}

DecodeProcess::~DecodeProcess() {
  close(questions_);
  int status = -1;
  waitpid(pid_, &status, 0);
  EXPECT_EQ(status, 0);
  close(answers_);
}

std::string DecodeProcess::Answer() {
  int64_t size = 0;
  std::string answer;
  bool whole = ReadAll(answers_, &size, sizeof(size), kAnswerLimitMs);
  if (whole) {
    answer.resize(static_cast<size_t>(size));
    whole = ReadAll(answers_, answer.data(), answer.size(), kAnswerLimitMs);
  }
  EXPECT_TRUE(whole) << "the decode process does not answer";
  return whole ? answer : "";
}

std::string DecodeProcess::Ask(int64_t what, int64_t a, int64_t b) {
  const Question question{what, a, b};
  EXPECT_TRUE(WriteAll(questions_, &question, sizeof(question)));
  return Answer();
}

std::vector<LeaseId> DecodeProcess::Reserve(int64_t tokens, int count) {
  const std::string answer = Ask(kReserve, tokens, count);
  std::vector<LeaseId> leases(answer.size() / sizeof(LeaseId));
  std::memcpy(leases.data(), answer.data(), leases.size() * sizeof(LeaseId));
  return leases;
}

TimePoint DecodeProcess::adopted_at() {
  TimePoint at{};
  const std::string answer = Ask(kAdoptedAt);
  if (answer.size() == sizeof(at)) std::memcpy(&at, answer.data(), sizeof(at));
  return at;
}

std::vector<std::byte> DecodeProcess::Sample(LeaseId lease, int64_t tokens) {
  const std::string answer = Ask(kSample, static_cast<int64_t>(lease.value()), tokens);
  const auto* bytes = reinterpret_cast<const std::byte*>(answer.data());
  return {bytes, bytes + answer.size()};
}

void DecodeProcess::Free(const std::vector<LeaseId>& leases) {
  for (LeaseId lease : leases) Ask(kFree, static_cast<int64_t>(lease.value()));
}

std::string DecodeProcess::Phases() { return Ask(kPhases); }

std::optional<int> RunAsDecodeProcess() {
  const char* variable = getenv(kVariable);
  if (variable == nullptr) return std::nullopt;
  int questions = -1;
  int answers = -1;
  int gpu = 0;
  int ctas = 0;
  int num_slots = 0;
  long long slot_bytes = 0;
  long long tokens = 0;
  if (std::sscanf(variable, "%d %d %d %d %lld %d %lld", &questions, &answers, &gpu, &ctas,
                  &slot_bytes, &num_slots, &tokens) != 7) {
    return 1;
  }
  auto waker = std::make_shared<Waker>();
  DecodeHere decode({.end = {.gpu = DeviceId{gpu},
                             .slot_bytes = slot_bytes,
                             .num_slots = num_slots,
                             .tokens = tokens},
                     .listener = std::make_unique<Listener>(
                         MakeWakingEndpoint(Side::kDecode, DeviceId{gpu}, ctas, waker)),
                     .waker = waker});
  bool asked = WriteAnswer(answers, decode.instance().ToString() + " " + decode.address());
  Question question;
  while (asked && ReadAll(questions, &question, sizeof(question), -1)) {
    asked = WriteAnswer(answers, Reply(decode, question));
  }
  return 0;
}

}  // namespace lodestone::nccl
