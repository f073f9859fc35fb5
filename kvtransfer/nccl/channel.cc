#include "kvtransfer/nccl/channel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace lodestone::nccl {
namespace {

// More than a link may have outstanding; a full queue is a bug.
constexpr size_t kMaxJobs = 1024;
constexpr uint64_t kWarmUpSeq = 0;  // slots of a link start at 1
constexpr std::chrono::microseconds kDrainPoll{200};

int PeerOf(Side side) { return 1 - static_cast<int>(side); }

// Threads that are started meanwhile stay on this thread's processor. NCCL starts one for what a
// non-blocking communicator is given, and to wake a processor for it takes longer than its work (72
// us against 2 on H200): here it begins as soon as this thread yields.
class StartsThreadsHere {
 public:
  StartsThreadsHere() {
    cpu_set_t here;
    CPU_ZERO(&here);
    const int processor = sched_getcpu();
    if (processor < 0 || processor >= CPU_SETSIZE) return;
    CPU_SET(processor, &here);
    const pthread_t self = pthread_self();
    moved_ = pthread_getaffinity_np(self, sizeof(before_), &before_) == 0 &&
             pthread_setaffinity_np(self, sizeof(here), &here) == 0;
  }
  ~StartsThreadsHere() {
    if (moved_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
  }
  StartsThreadsHere(const StartsThreadsHere&) = delete;
  StartsThreadsHere& operator=(const StartsThreadsHere&) = delete;

 private:
  cpu_set_t before_;
  bool moved_ = false;
};

}  // namespace

Channel::Channel(Options options)
    : options_(std::move(options)), jobs_(kMaxJobs), events_(2 * kMaxJobs) {}

Channel::~Channel() {
  for (cudaEvent_t event : spare_events_) cudaEventDestroy(event);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

std::shared_ptr<Channel> Channel::Refused(absl::Status why) {
  auto channel = std::make_shared<Channel>(Options{});
  channel->Fail(std::move(why));
  channel->closed_ = true;
  return channel;
}

void Channel::Post(uint64_t link_seq, std::span<std::byte> slot) {
  CHECK(jobs_.TryPush({link_seq, slot})) << "more than " << kMaxJobs << " slots";
}

void Channel::Report(SlotEvent event) {
  CHECK(events_.TryPush(std::move(event))) << "nobody polls this link";
  if (options_.wake) options_.wake();
}

void Channel::Fail(absl::Status why) {
  state_ = State::kFailed;
  Report({.kind = SlotEvent::Kind::kFailed, .status = std::move(why)});
}

bool Channel::CheckedCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  Fail(absl::UnavailableError(absl::StrCat(what, " failed: ", cudaGetErrorString(error))));
  return false;
}

void Channel::Open(TimePoint now, WarmUp warm_up) {
  warm_up_ = warm_up;
  deadline_ = now + options_.times.link_up;
  state_ = State::kInitializing;
  // What a link moves is waited for by somebody: before the kernels that make and take it.
  int least = 0;
  int greatest = 0;
  cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (!CheckedCuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
                   "a link's stream")) {
    return;
  }
  StartComm();
}

void Channel::StartComm() {
  Config config;
  config.blocking = 0;
  config.min_ctas = kChannelsPerCta * options_.ctas;
  config.max_ctas = config.min_ctas;
  const Result result = options_.api->CommInitRankConfig(
      &comm_, 2, options_.id, static_cast<int>(options_.side), &config);
  if (absl::Status status = options_.api->ToStatus(result, "ncclCommInitRankConfig");
      !status.ok()) {
    Fail(std::move(status));
  }
}

bool Channel::CommReady() {
  Result error = Result::kSuccess;
  absl::Status status = options_.api->ToStatus(options_.api->CommGetAsyncError(comm_, &error),
                                               "ncclCommGetAsyncError");
  if (status.ok()) status = options_.api->ToStatus(error, "the communicator");
  if (!status.ok()) {
    Fail(std::move(status));
    return false;
  }
  return error == Result::kSuccess;
}

bool Channel::Step(TimePoint now) {
  switch (state_) {
    case State::kNew:
    case State::kFailed:
      return false;
    case State::kInitializing:
      StepInitializing();
      break;
    case State::kWarmingUp:
      StepWarmingUp();
      break;
    case State::kUp:
      StepUp(now);
      return !in_flight_.empty() || !issuing_.empty();
  }
  const bool coming_up = state_ == State::kInitializing || state_ == State::kWarmingUp;
  if (coming_up && now > deadline_) {
    Fail(absl::DeadlineExceededError(absl::StrCat("the NCCL link has not come up within ",
                                                  options_.times.link_up.count(), " ms")));
  }
  return state_ == State::kUp;
}

void Channel::StepInitializing() {
  if (!CommReady()) return;
  state_ = State::kWarmingUp;
  const int value = options_.side == Side::kPrefill ? static_cast<int>(kWarmUpByte) : 0;
  const auto buffer = warm_up_.device;
  if (!CheckedCuda(cudaMemsetAsync(buffer.data(), value, buffer.size(), stream_), "warming up")) {
    return;
  }
  issuing_ = {Job{kWarmUpSeq, buffer}};
  Issue();
}

void Channel::StepWarmingUp() {
  if (!issuing_.empty()) {
    if (!CommReady()) return;
    if (options_.side == Side::kDecode &&
        !CheckedCuda(cudaMemcpyAsync(warm_up_.host.data(), warm_up_.device.data(),
                                     warm_up_.host.size(), cudaMemcpyDeviceToHost, stream_),
                     "warming up")) {
      return;
    }
    if (!RecordIssued()) return;
  }
  const cudaError_t passed = cudaEventQuery(in_flight_.front().passed);
  if (passed == cudaErrorNotReady || !CheckedCuda(passed, "warming up")) return;
  spare_events_.push_back(in_flight_.front().passed);
  in_flight_.pop_front();
  num_in_flight_ = 0;
  if (options_.side == Side::kDecode && !WarmUpArrivedWhole()) {
    return Fail(absl::DataLossError("the first bytes over the NCCL link arrived altered"));
  }
  state_ = State::kUp;
  Report({.kind = SlotEvent::Kind::kConnected});
}

bool Channel::WarmUpArrivedWhole() const {
  return std::all_of(warm_up_.host.begin(), warm_up_.host.end(),
                     [](std::byte byte) { return byte == kWarmUpByte; });
}

void Channel::StepUp(TimePoint now) {
  const size_t before = num_in_flight_;
  // What NCCL is still putting on the stream does not keep slots that have passed.
  if (!TakePassed()) return;
  if (CommReady()) {
    if (!issuing_.empty() && !RecordIssued()) return;
    IssueWaiting();
  } else if (state_ == State::kUp) {
    sched_yield();  // to NCCL's thread
  }
  if (num_in_flight_ != before || !issuing_.empty()) moved_at_ = now;
}

// False if the channel has failed.
bool Channel::TakePassed() {
  while (!in_flight_.empty()) {
    const InFlight& oldest = in_flight_.front();
    const cudaError_t passed = cudaEventQuery(oldest.passed);
    if (passed == cudaErrorNotReady) break;
    if (!CheckedCuda(passed, "a transfer")) return false;
    for (const Job& job : oldest.jobs) {
      Report({.kind = SlotEvent::Kind::kDone, .link_seq = job.link_seq});
    }
    num_in_flight_ -= oldest.jobs.size();
    spare_events_.push_back(oldest.passed);
    in_flight_.pop_front();
  }
  return true;
}

void Channel::IssueWaiting() {
  if (num_in_flight_ >= kEnoughInFlight && jobs_.size() < options_.max_group) return;
  while (num_in_flight_ + issuing_.size() < kMaxInFlight && issuing_.size() < options_.max_group) {
    const std::optional<Job> job = jobs_.TryPop();
    if (!job) break;
    issuing_.push_back(*job);
  }
  if (issuing_.empty()) return;
  const StartsThreadsHere starts_threads_here;
  Issue();
}

// NCCL does in a thread of its own what it is given here; CommReady says when it has.
void Channel::Issue() {
  const bool group = issuing_.size() > 1;
  Result result = group ? options_.api->GroupStart() : Result::kSuccess;
  absl::Status status = options_.api->ToStatus(result, "ncclGroupStart");
  for (const Job& job : issuing_) {
    if (status.ok()) status = options_.api->ToStatus(Enqueue(job), "a transfer");
  }
  if (group) {
    result = options_.api->GroupEnd();
    if (status.ok()) status = options_.api->ToStatus(result, "ncclGroupEnd");
  }
  if (!status.ok()) Fail(std::move(status));
}

Result Channel::Enqueue(const Job& job) {
  const int peer = PeerOf(options_.side);
  return options_.side == Side::kPrefill
             ? options_.api->Send(job.slot.data(), job.slot.size(), kUint8, peer, comm_, stream_)
             : options_.api->Recv(job.slot.data(), job.slot.size(), kUint8, peer, comm_, stream_);
}

// Marks the place on the stream where the operations that NCCL has queued by now are over.
bool Channel::RecordIssued() {
  cudaEvent_t event = TakeEvent();
  if (event == nullptr || !CheckedCuda(cudaEventRecord(event, stream_), "a transfer")) return false;
  num_in_flight_ += issuing_.size();
  in_flight_.push_back({std::exchange(issuing_, {}), event});
  return true;
}

cudaEvent_t Channel::TakeEvent() {
  cudaEvent_t event = nullptr;
  if (spare_events_.empty()) {
    CheckedCuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "a link's event");
  } else {
    event = spare_events_.front();
    spare_events_.pop_front();
  }
  return event;
}

absl::Status Channel::Shutdown(TimePoint deadline) {
  absl::Status status;
  if (comm_ != nullptr) {
    status = options_.api->ToStatus(options_.api->CommAbort(comm_), "ncclCommAbort");
    if (!status.ok()) LOG(WARNING) << status.ToString();
  }
  while (stream_ != nullptr && cudaStreamQuery(stream_) == cudaErrorNotReady) {
    if (RealClock()->Now() > deadline) {
      return absl::DeadlineExceededError("the stream of an aborted NCCL link does not end");
    }
    std::this_thread::sleep_for(kDrainPoll);
  }
  for (const InFlight& operation : in_flight_) spare_events_.push_back(operation.passed);
  in_flight_.clear();
  closed_ = true;
  if (options_.wake) options_.wake();
  return absl::OkStatus();
}

}  // namespace lodestone::nccl
