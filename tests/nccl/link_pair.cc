#include "tests/nccl/link_pair.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"

namespace lodestone::nccl {
namespace {

using std::chrono::milliseconds;

// What a child process has to do travels in these variables.
constexpr char kRole[] = "NCCL_TEST_ROLE";
constexpr char kDevice[] = "NCCL_TEST_DEVICE";
constexpr char kSlotBytes[] = "NCCL_TEST_SLOT_BYTES";
constexpr char kKeyPipe[] = "NCCL_TEST_KEY_PIPE";
constexpr char kCtas[] = "NCCL_TEST_CTAS";
constexpr size_t kDepth = 16;

void MustBeOk(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::abort();
}

std::vector<uint64_t> Pattern(uint64_t seed, size_t bytes) {
  std::vector<uint64_t> words(bytes / sizeof(uint64_t) + 1);
  uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
  for (uint64_t& word : words) {
    state += 0x9e3779b97f4a7c15u;
    word = (state ^ (state >> 29)) * 0xbf58476d1ce4e5b9u;
  }
  return words;
}

int StartChild(const Placement& placement, std::vector<std::string> environment) {
  if (placement.two_hosts) environment.push_back("NCCL_HOSTID=another host");
  const int pid = fork();
  if (pid != 0) return pid;
  for (const std::string& entry : environment) putenv(strdup(entry.c_str()));
  execl("/proc/self/exe", "nccl_tests", nullptr);
  _exit(127);
}

void KillChild(int& pid) {
  if (pid < 0) return;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  pid = -1;
}

size_t Number(const char* name) {
  return static_cast<size_t>(std::strtoull(getenv(name), nullptr, 10));
}

bool Connected(SlotStream& stream) {
  const auto event = NextEvent(stream, milliseconds(15'000));
  return event.has_value() && event->kind == SlotEvent::Kind::kConnected;
}

// The next session key that the parent has written, or nullopt. `pipe` does not block.
std::optional<std::string> NextKey(int pipe) {
  std::string key(kUniqueIdBytes, '\0');
  if (read(pipe, key.data(), key.size()) != static_cast<ssize_t>(key.size())) return std::nullopt;
  return key;
}

// Sends over a link until there is a key for the next, whether the link lives or not.
std::optional<std::string> SendUntilNextKey(SlotWriter& writer, std::span<std::byte> slot,
                                            int pipe) {
  uint64_t posted = 0;
  uint64_t done = 0;
  bool failed = !Connected(writer);
  std::optional<std::string> next;
  while (!(next = NextKey(pipe))) {
    while (!failed && posted - done < kDepth) writer.Write(++posted, slot);
    const auto event = NextEvent(writer, milliseconds(1));
    if (!event) continue;
    if (event->kind == SlotEvent::Kind::kDone) done = event->link_seq;
    failed = failed || event->kind == SlotEvent::Kind::kFailed;
  }
  return next;
}

int SendForever() {
  const int device = static_cast<int>(Number(kDevice));
  const int pipe = static_cast<int>(Number(kKeyPipe));
  fcntl(pipe, F_SETFL, O_NONBLOCK);
  auto endpoint = MakeEndpoint(Side::kPrefill, device, static_cast<int>(Number(kCtas)));
  DeviceBytes slot(device, Number(kSlotBytes));
  slot.Fill(1);
  std::optional<std::string> key;
  WaitFor([&] { return (key = NextKey(pipe)).has_value(); }, milliseconds(60'000));
  while (key.has_value()) {
    auto writer = Dialer(endpoint.get()).Connect("", 0, *key);
    key = SendUntilNextKey(*writer, slot.span(), pipe);
  }
  return 1;
}

int ReceiveForever() {
  const int device = static_cast<int>(Number(kDevice));
  auto endpoint = MakeEndpoint(Side::kDecode, device);
  Listener listener(endpoint.get());
  const auto key = listener.NewSessionKey();
  if (!key.ok()) return 1;
  auto reader = listener.Open(*key);
  const int pipe = static_cast<int>(Number(kKeyPipe));
  if (write(pipe, key->data(), key->size()) != static_cast<ssize_t>(key->size())) return 1;
  if (!Connected(*reader)) return 1;
  DeviceBytes slot(device, Number(kSlotBytes));
  uint64_t posted = 0;
  uint64_t done = 0;
  while (true) {
    while (posted - done < kDepth) reader->Expect(++posted, slot.span());
    const auto event = NextEvent(*reader, milliseconds(60'000));
    if (!event || event->kind != SlotEvent::Kind::kDone) return 1;
    done = event->link_seq;
  }
}

}  // namespace

std::string WhyNoNccl(int gpus) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  if (count < gpus) return absl::StrCat("needs ", gpus, " GPUs, ", count, " are here");
  const auto api = Api::Load("");
  return api.ok() ? "" : std::string(api.status().message());
}

LinkTimes QuickTimes() {
  LinkTimes times;
  times.link_up = milliseconds(10'000);
  return times;
}

std::unique_ptr<Endpoint> MakeEndpoint(Side side, int device, int ctas, LinkTimes times,
                                       size_t max_group) {
  EndpointOptions options{
      .device = device, .side = side, .ctas = ctas, .max_group = max_group, .times = times};
  auto endpoint = Endpoint::Create(std::move(options));
  if (!endpoint.ok()) {
    std::fprintf(stderr, "%s\n", endpoint.status().ToString().c_str());
    std::abort();
  }
  return *std::move(endpoint);
}

DeviceBytes::DeviceBytes(int device, size_t size) : device_(device), size_(size) {
  MustBeOk(cudaSetDevice(device_));
  void* data = nullptr;
  MustBeOk(cudaMalloc(&data, size_));
  data_ = static_cast<std::byte*>(data);
}

DeviceBytes::~DeviceBytes() {
  cudaSetDevice(device_);
  cudaFree(data_);
}

void DeviceBytes::Fill(uint64_t seed) {
  MustBeOk(cudaSetDevice(device_));
  MustBeOk(cudaMemcpy(data_, Pattern(seed, size_).data(), size_, cudaMemcpyHostToDevice));
}

bool DeviceBytes::Holds(uint64_t seed) const {
  MustBeOk(cudaSetDevice(device_));
  std::vector<std::byte> here(size_);
  MustBeOk(cudaMemcpy(here.data(), data_, size_, cudaMemcpyDeviceToHost));
  return std::memcmp(here.data(), Pattern(seed, size_).data(), size_) == 0;
}

void DeviceBytes::Clear() {
  MustBeOk(cudaSetDevice(device_));
  MustBeOk(cudaMemset(data_, 0, size_));
  MustBeOk(cudaDeviceSynchronize());
}

bool SameBytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  std::vector<std::byte> here[2] = {std::vector<std::byte>(a.size()),
                                    std::vector<std::byte>(b.size())};
  MustBeOk(cudaMemcpy(here[0].data(), a.data(), a.size(), cudaMemcpyDeviceToHost));
  MustBeOk(cudaMemcpy(here[1].data(), b.data(), b.size(), cudaMemcpyDeviceToHost));
  return here[0] == here[1];
}

int64_t FreeBytes(int device) {
  MustBeOk(cudaSetDevice(device));
  size_t free = 0;
  size_t total = 0;
  MustBeOk(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

double SecondsSince(TimePoint start) {
  return std::chrono::duration<double>(RealClock()->Now() - start).count();
}

double PeerCopyRate(size_t bytes) {
  const DeviceBytes from(0, bytes);
  const DeviceBytes to(1, bytes);
  cudaSetDevice(0);
  cudaDeviceEnablePeerAccess(1, 0);
  cudaGetLastError();  // it may be enabled already
  double best = 0;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const TimePoint start = RealClock()->Now();
    cudaMemcpyPeer(to.span().data(), 1, from.span().data(), 0, bytes);
    cudaDeviceSynchronize();
    best = std::max(best, static_cast<double>(bytes) / SecondsSince(start));
  }
  return best;
}

bool WaitFor(const std::function<bool()>& condition, milliseconds limit) {
  const TimePoint until = RealClock()->Now() + limit;
  while (!condition()) {
    if (RealClock()->Now() > until) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

std::optional<SlotEvent> NextEvent(SlotStream& stream, milliseconds limit) {
  std::optional<SlotEvent> event;
  WaitFor([&] { return (event = stream.Poll()).has_value(); }, limit);
  return event;
}

LinkPair Connect(Endpoint& prefill, Endpoint& decode) {
  LinkPair pair;
  Listener listener(&decode);
  const auto key = listener.NewSessionKey();
  EXPECT_TRUE(key.ok()) << key.status().ToString();
  if (!key.ok()) return pair;
  pair.reader = listener.Open(*key);
  pair.writer = Dialer(&prefill).Connect("", 0, *key);
  for (SlotStream* end : {static_cast<SlotStream*>(pair.reader.get()),
                          static_cast<SlotStream*>(pair.writer.get())}) {
    const auto event = NextEvent(*end, milliseconds(15'000));
    EXPECT_TRUE(event.has_value());
    if (!event) break;
    EXPECT_EQ(event->kind, SlotEvent::Kind::kConnected) << event->status.ToString();
  }
  return pair;
}

void Disconnect(LinkPair pair) {
  pair.writer->Close();
  pair.reader->Close();
  EXPECT_TRUE(WaitFor([&] { return pair.writer->closed() && pair.reader->closed(); },
                      milliseconds(5'000)));
}

SenderProcess::SenderProcess(const Placement& placement, const std::string& session_key,
                             size_t slot_bytes, int ctas) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  pid_ =
      StartChild(placement, {absl::StrCat(kRole, "=sender"), absl::StrCat(kDevice, "=", 0),
                             absl::StrCat(kSlotBytes, "=", slot_bytes),
                             absl::StrCat(kCtas, "=", ctas), absl::StrCat(kKeyPipe, "=", ends[0])});
  close(ends[0]);
  key_pipe_ = ends[1];
  Relink(session_key);
}

void SenderProcess::Relink(const std::string& session_key) {
  EXPECT_EQ(write(key_pipe_, session_key.data(), session_key.size()),
            static_cast<ssize_t>(kUniqueIdBytes));
}

void SenderProcess::Freeze() { EXPECT_EQ(kill(pid_, SIGSTOP), 0); }

void SenderProcess::Kill() {
  KillChild(pid_);
  if (key_pipe_ >= 0) close(std::exchange(key_pipe_, -1));
}

ReceiverProcess::ReceiverProcess(const Placement& placement, size_t slot_bytes) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  pid_ = StartChild(
      placement,
      {absl::StrCat(kRole, "=receiver"), absl::StrCat(kDevice, "=", placement.other_gpu()),
       absl::StrCat(kSlotBytes, "=", slot_bytes), absl::StrCat(kKeyPipe, "=", ends[1])});
  close(ends[1]);
  session_key_.resize(kUniqueIdBytes);
  EXPECT_EQ(read(ends[0], session_key_.data(), session_key_.size()),
            static_cast<ssize_t>(kUniqueIdBytes));
  close(ends[0]);
}

void ReceiverProcess::Kill() { KillChild(pid_); }

std::optional<int> RunAsChild() {
  const char* role = getenv(kRole);
  if (role == nullptr) return std::nullopt;
  return std::strcmp(role, "sender") == 0 ? SendForever() : ReceiveForever();
}

}  // namespace lodestone::nccl
