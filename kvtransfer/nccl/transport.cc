#include "kvtransfer/nccl/transport.h"

#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace lodestone::nccl {
namespace {

// Longer than an abort may take.
constexpr std::chrono::seconds kCloseLimit{10};
constexpr std::chrono::milliseconds kClosePoll{1};

std::shared_ptr<Channel> OpenWith(Endpoint* endpoint, const std::string& session_key) {
  if (session_key.size() != kUniqueIdBytes) {
    return Channel::Refused(absl::InvalidArgumentError(absl::StrCat(
        "session key of ", session_key.size(), " bytes, an NCCL id has ", kUniqueIdBytes)));
  }
  UniqueId id = {};
  std::memcpy(id.bytes.data(), session_key.data(), kUniqueIdBytes);
  return endpoint->Open(id);
}

// What a writer and a reader have in common: a share in a channel.
class ChannelShare {
 public:
  ChannelShare(Endpoint* endpoint, std::shared_ptr<Channel> channel)
      : endpoint_(endpoint), channel_(std::move(channel)) {}

  void Close() {
    channel_->RequestClose();
    endpoint_->Notify();
  }
  void Post(uint64_t link_seq, std::span<std::byte> slot) {
    channel_->Post(link_seq, slot);
    endpoint_->Notify();
  }
  std::optional<SlotEvent> Poll() { return channel_->Poll(); }
  void Prepare() { endpoint_->Notify(); }
  bool closed() const { return channel_->closed(); }

  void CloseAndWait() {
    Close();
    const TimePoint deadline = RealClock()->Now() + kCloseLimit;
    while (!closed() && RealClock()->Now() < deadline) std::this_thread::sleep_for(kClosePoll);
    if (!closed()) LOG(ERROR) << "an NCCL link does not close";
  }

 private:
  Endpoint* const endpoint_;
  const std::shared_ptr<Channel> channel_;
};

class Writer final : public SlotWriter {
 public:
  explicit Writer(ChannelShare share) : share_(std::move(share)) {}
  ~Writer() override { share_.CloseAndWait(); }

  // NCCL takes what it sends as const; the queue of a channel serves both directions.
  void Write(uint64_t link_seq, std::span<const std::byte> bytes) override {
    share_.Post(link_seq, {const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
  std::optional<SlotEvent> Poll() override { return share_.Poll(); }
  void Prepare() override { share_.Prepare(); }
  void Close() override { share_.Close(); }
  bool closed() const override { return share_.closed(); }

 private:
  ChannelShare share_;
};

class Reader final : public SlotReader {
 public:
  explicit Reader(ChannelShare share) : share_(std::move(share)) {}
  ~Reader() override { share_.CloseAndWait(); }

  void Expect(uint64_t link_seq, std::span<std::byte> slot) override {
    share_.Post(link_seq, slot);
  }
  std::optional<SlotEvent> Poll() override { return share_.Poll(); }
  void Prepare() override { share_.Prepare(); }
  void Close() override { share_.Close(); }
  bool closed() const override { return share_.closed(); }

 private:
  ChannelShare share_;
};

}  // namespace

std::unique_ptr<SlotWriter> Dialer::Connect(const std::string& /*host*/, int /*port*/,
                                            const std::string& session_key) {
  return std::make_unique<Writer>(ChannelShare(endpoint_, OpenWith(endpoint_, session_key)));
}

absl::StatusOr<std::string> Listener::NewSessionKey() {
  ASSIGN_OR_RETURN(const UniqueId id, endpoint_->NewId());
  return std::string(id.bytes.data(), id.bytes.size());
}

std::unique_ptr<SlotReader> Listener::Open(const std::string& session_key) {
  return std::make_unique<Reader>(ChannelShare(endpoint_, OpenWith(endpoint_, session_key)));
}

}  // namespace lodestone::nccl
