#include "tests/nccl/decode_end.h"

#include "tests/kvcache/shapes.h"

namespace lodestone::nccl {

DecodeHere::DecodeHere(Options options)
    : shape_(FlashShape()),
      options_(std::move(options)),
      gpu_(options_.end.gpu, shape_, options_.end.tokens),
      target_(TinyShape()),
      service_(TimesOfWorkers(), [waker = options_.waker] { waker->Wake(); }) {
  target_.pool = std::move(gpu_.pool);
  server_ = StartGrpcServer("127.0.0.1", 0, {&service_}).value();
  receiver_ = SlotReceiver::Create({.instance = instance_,
                                    .layout = TinyLayout(shape_),
                                    .shape = shape_,
                                    .ops = gpu_.ops.get(),
                                    .stream = &gpu_.stream,
                                    .clock = RealClock(),
                                    .control = &service_,
                                    .data = {options_.listener.get()},
                                    .metrics = &metrics_,
                                    .num_slots = options_.end.num_slots,
                                    .slot_bytes = options_.end.slot_bytes,
                                    .times = TimesOfWorkers()})
                  .value();
  loop_ = std::thread([this] { Loop(); });
}

DecodeHere::~DecodeHere() {
  stop_ = true;
  options_.waker->Wake();
  loop_.join();
  service_.Shutdown();
  receiver_.reset();
  server_.Shutdown(std::chrono::seconds(2));
  target_.caches.clear();
}

void DecodeHere::Loop() {
  while (!stop_) {
    if (!receiver_->MovesRows()) {
      options_.waker->WaitUntil(RealClock()->Now() + std::chrono::milliseconds(5));
    }
    MutexLock lock(&mutex_);
    receiver_->Pump(target_);
  }
}

std::vector<LeaseId> DecodeHere::Reserve(int64_t tokens, int count) {
  MutexLock lock(&mutex_);
  std::vector<LeaseId> leases;
  for (int i = 0; i < count; ++i) leases.push_back(target_.Reserve(tokens));
  return leases;
}

TimePoint DecodeHere::adopted_at() {
  MutexLock lock(&mutex_);
  return target_.adopted_at;
}

std::vector<std::byte> DecodeHere::Sample(LeaseId lease, int64_t tokens) {
  MutexLock lock(&mutex_);
  return SampleOf(AllRuns(*target_.caches.at(lease), tokens));
}

void DecodeHere::Free(const std::vector<LeaseId>& leases) {
  MutexLock lock(&mutex_);
  for (LeaseId lease : leases) {
    target_.Free(lease);
    target_.adopted.erase(lease);
  }
}

}  // namespace lodestone::nccl
