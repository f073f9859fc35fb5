#include "kvtransfer/nccl/endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone::nccl {
namespace {

constexpr std::chrono::milliseconds kIdleSlice{20};
// While slots move their ends are looked for without sleep, since the shortest sleep of a thread is
// half the time of a slot, and to wake one takes up to four times that; slots that wait for a peer
// longer than this are looked at in slices.
constexpr std::chrono::milliseconds kSpinFor{5};
constexpr int kPauses = 16;
constexpr std::chrono::microseconds kSpunSlice{50};
// Nobody waits for a slot that has left; what has arrived is to be scattered at once, and the gaps
// between receives are hidden by NCCL's buffers.
constexpr size_t kMaxSendGroup = 4;
constexpr size_t kMaxReceiveGroup = 1;
constexpr std::chrono::seconds kAbortLimit{5};
// Beyond kAbortLimit: ncclCommAbort itself has not returned.
constexpr std::chrono::seconds kAbortGrace{2};

constexpr int64_t kMiB = int64_t{1} << 20;
// NCCL 2.28.3 on H200: kernels and the like once per process, then per link and channel.
constexpr int64_t kProcessBytes = 448 * kMiB;
constexpr int64_t kSendBytesPerCta = Channel::kChannelsPerCta * 8 * kMiB;
constexpr int64_t kReceiveBytesPerCta = Channel::kChannelsPerCta * 16 * kMiB;

absl::Status CudaStatus(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string text = absl::StrCat(what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

// NCCL takes processes with different NCCL_HOSTID for ones of different hosts.
std::string PlaceOf(const cudaDeviceProp& properties) {
  const std::string gpu =
      absl::BytesToHexString({properties.uuid.bytes, sizeof(properties.uuid.bytes)});
  const auto host = GetEnvironment("NCCL_HOSTID");
  return host.has_value() ? absl::StrCat(*host, "/", gpu) : gpu;
}

}  // namespace

int64_t EndpointOptions::DeviceBytes(int links) const {
  const int64_t per_cta = side == Side::kPrefill ? kSendBytesPerCta : kReceiveBytesPerCta;
  const auto warm_up = static_cast<int64_t>(Channel::kWarmUpBytes) * max_links;
  return kProcessBytes + links * ctas * per_cta + warm_up;
}

void Endpoint::DeviceFree::operator()(void* bytes) const { cudaFree(bytes); }
void Endpoint::HostFree::operator()(void* bytes) const { cudaFreeHost(bytes); }

absl::StatusOr<std::unique_ptr<Endpoint>> Endpoint::Create(EndpointOptions options) {
  ASSIGN_OR_RETURN(const Api* api, Api::Load(options.nccl_library));
  RETURN_IF_ERROR(CudaStatus(cudaSetDevice(options.device), "the GPU of the NCCL links"));
  cudaDeviceProp properties{};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, options.device),
                             "the GPU of the NCCL links"));
  std::unique_ptr<Endpoint> endpoint(new Endpoint(std::move(options), api, PlaceOf(properties)));
  RETURN_IF_ERROR(endpoint->AllocateWarmUp());
  endpoint->thread_ = std::thread([raw = endpoint.get()] { raw->Serve(); });
  return endpoint;
}

Endpoint::Endpoint(EndpointOptions options, const Api* api, std::string place)
    : options_(std::move(options)), api_(api), place_(std::move(place)) {}

absl::Status Endpoint::health() const {
  if (!poisoned_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("GPU ", options_.device,
                                          ": a link over NCCL could not be ended within ",
                                          kAbortLimit.count(), " s, its memory is lost"));
}

absl::Status Endpoint::AllocateWarmUp() {
  const size_t bytes = Channel::kWarmUpBytes * static_cast<size_t>(options_.max_links);
  void* device = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMalloc(&device, bytes), "warm-up buffers of NCCL links"));
  warm_up_device_.reset(device);
  void* host = nullptr;
  RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&host, bytes), "warm-up buffers of NCCL links"));
  warm_up_host_.reset(host);
  MutexLock lock(&mutex_);
  users_.resize(static_cast<size_t>(options_.max_links));
  return absl::OkStatus();
}

Endpoint::~Endpoint() {
  stop_ = true;
  Notify();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<UniqueId> Endpoint::NewId() const {
  UniqueId id = {};
  RETURN_IF_ERROR(api_->ToStatus(api_->GetUniqueId(&id), "ncclGetUniqueId"));
  return id;
}

std::shared_ptr<Channel> Endpoint::Open(const UniqueId& id) {
  MutexLock lock(&mutex_);
  const auto soon_free = std::count_if(users_.begin(), users_.end(), [](const auto& user) {
    return user == nullptr || user->close_requested();
  });
  const auto before = std::count_if(waiting_.begin(), waiting_.end(), [](const auto& channel) {
    return !channel->close_requested();
  });
  if (before >= soon_free) {
    return Channel::Refused(absl::ResourceExhaustedError(
        absl::StrCat("NCCL links: ", options_.max_links, " are open, which is the limit")));
  }
  const size_t best_group = options_.side == Side::kPrefill ? kMaxSendGroup : kMaxReceiveGroup;
  auto channel = std::make_shared<Channel>(Channel::Options{
      .api = api_,
      .device = options_.device,
      .side = options_.side,
      .id = id,
      .ctas = options_.ctas,
      .max_group = options_.max_group > 0 ? options_.max_group : best_group,
      .times = options_.times,
      .wake = options_.wake});
  waiting_.push_back(channel);
  notified_ = true;
  work_.NotifyAll();
  return channel;
}

Channel::WarmUp Endpoint::WarmUpOf(int place) const {
  const size_t offset = Channel::kWarmUpBytes * static_cast<size_t>(place);
  return {.device = {static_cast<std::byte*>(warm_up_device_.get()) + offset,
                     Channel::kWarmUpBytes},
          .host = {static_cast<std::byte*>(warm_up_host_.get()) + offset, Channel::kWarmUpBytes}};
}

std::vector<Endpoint::Link> Endpoint::TakeWaiting() {
  std::vector<Link> taken;
  MutexLock lock(&mutex_);
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    const auto free = std::find(users_.begin(), users_.end(), nullptr);
    if (!(*it)->close_requested() && free == users_.end()) {
      ++it;
      continue;
    }
    Link link{.channel = *it};
    if (!link.channel->close_requested()) {
      *free = link.channel;
      link.place = static_cast<int>(free - users_.begin());
    }
    taken.push_back(std::move(link));
    it = waiting_.erase(it);
  }
  return taken;
}

void Endpoint::Notify() {
  MutexLock lock(&mutex_);
  notified_ = true;
  work_.NotifyAll();
}

int Endpoint::num_links() const {
  MutexLock lock(&mutex_);
  const auto free = std::count(users_.begin(), users_.end(), nullptr);
  return options_.max_links - static_cast<int>(free) + static_cast<int>(waiting_.size());
}

void Endpoint::Serve() {
  cudaSetDevice(options_.device);
  while (!stop_) {
    const std::optional<TimePoint> moved_at = StepAll();
    ReapClosed(/*wait=*/false);
    WaitForWork(moved_at);
  }
  {
    MutexLock lock(&mutex_);
    for (auto& channel : waiting_) links_.push_back({.channel = std::move(channel)});
    waiting_.clear();
  }
  while (!links_.empty()) {
    StartClosing(std::move(links_.front()));
    links_.pop_front();
  }
  ReapClosed(/*wait=*/true);
}

std::optional<TimePoint> Endpoint::StepAll() {
  const TimePoint now = RealClock()->Now();
  for (Link& link : TakeWaiting()) {
    if (link.place >= 0) link.channel->Open(now, WarmUpOf(link.place));
    links_.push_back(std::move(link));
  }
  std::optional<TimePoint> moved_at;
  for (auto it = links_.begin(); it != links_.end();) {
    if (it->channel->close_requested()) {
      StartClosing(std::move(*it));
      it = links_.erase(it);
      continue;
    }
    if (it->channel->Step(now))
      moved_at = std::max(moved_at, std::optional(it->channel->moved_at()));
    ++it;
  }
  return moved_at;
}

void Endpoint::StartClosing(Link link) {
  Closing& closing = closing_.emplace_back();
  closing.link = std::move(link);
  closing.deadline = RealClock()->Now() + kAbortLimit;
  closing.thread = std::thread([this, &closing] {
    cudaSetDevice(options_.device);
    const absl::Status end = closing.link.channel->Shutdown(closing.deadline);
    if (!end.ok()) {
      LOG(ERROR) << end.ToString();
      poisoned_ = true;
    }
    closing.done = true;
    Notify();
  });
}

void Endpoint::ReapClosed(bool wait) {
  for (auto it = closing_.begin(); it != closing_.end();) {
    if (!wait && !it->done) {
      if (RealClock()->Now() > it->deadline + kAbortGrace) poisoned_ = true;
      ++it;
      continue;
    }
    it->thread.join();
    if (it->link.channel->closed() && it->link.place >= 0) {
      MutexLock lock(&mutex_);
      users_[static_cast<size_t>(it->link.place)] = nullptr;
    }
    it = closing_.erase(it);
  }
}

// Links that come up are looked at every kIdleSlice too, so their deadline is kept.
void Endpoint::WaitForWork(std::optional<TimePoint> moved_at) {
  const TimePoint now = RealClock()->Now();
  if (moved_at.has_value()) {
    last_news_ = now;
    if (now - *moved_at > kSpinFor) std::this_thread::sleep_for(kSpunSlice);
    return;
  }
  if (now - last_news_ < kSpinFor) {
    for (int i = 0; i < kPauses; ++i) __builtin_ia32_pause();
    return;
  }
  MutexLock lock(&mutex_);
  work_.WaitUntil(&mutex_, now + kIdleSlice, [this]() REQUIRES(mutex_) { return notified_; });
  if (notified_) last_news_ = RealClock()->Now();
  notified_ = false;
}

}  // namespace lodestone::nccl
