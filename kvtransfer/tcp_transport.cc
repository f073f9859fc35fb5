#include "kvtransfer/tcp_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <list>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/bounded_queue.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "kvtransfer/frame.h"
#include "kvtransfer/socket.h"

namespace lodestone {
namespace {

using std::chrono::milliseconds;

// More than a link may have outstanding; a full queue is a bug.
constexpr size_t kMaxJobs = 1024;
constexpr milliseconds kIdleSlice{100};
constexpr milliseconds kHelloLimit{2'000};
constexpr size_t kMaxStrangers = 32;

// What the two ends have in common: a thread, its connection, events for the loop.
class TcpStream {
 public:
  explicit TcpStream(const LinkTimes& times, std::function<void()> wake)
      : times_(times), wake_(std::move(wake)) {}

  std::optional<SlotEvent> Poll() { return events_.TryPop(); }

  void Close() {
    if (stop_.exchange(true)) return;
    MutexLock lock(&mutex_);
    socket_.Shutdown();
  }
  bool closed() const { return stop_.load() && finished_.load(); }

 protected:
  void Start(std::function<absl::Status()> serve) {
    thread_ = std::thread([this, serve = std::move(serve)] {
      const absl::Status end = serve();
      {
        MutexLock lock(&mutex_);
        socket_.Shutdown();  // the peer learns it now, not when the loop reaps this stream
      }
      Report({.kind = SlotEvent::Kind::kFailed, .status = end});
      finished_ = true;
    });
  }
  void Join() {
    Close();
    if (thread_.joinable()) thread_.join();
    finished_ = true;
  }

  void Report(SlotEvent event) {
    events_.TryPush(std::move(event));
    if (wake_) wake_();
  }
  // The thread's; Close() may shut it down meanwhile.
  int Adopt(Socket socket) {
    MutexLock lock(&mutex_);
    socket_ = std::move(socket);
    if (stop_) socket_.Shutdown();
    return socket_.fd();
  }
  IoLimits Limits(std::chrono::nanoseconds limit) const {
    return {.stall = times_.stall, .deadline = RealClock()->Now() + limit, .stop = &stop_};
  }

  const LinkTimes times_;
  std::atomic<bool> stop_ = false;

 private:
  const std::function<void()> wake_;
  std::atomic<bool> finished_ = false;
  BoundedQueue<SlotEvent> events_{2 * kMaxJobs};
  Mutex mutex_;
  Socket socket_ GUARDED_BY(mutex_);
  std::thread thread_;
};

class TcpWriter final : public SlotWriter, private TcpStream {
 public:
  TcpWriter(std::string host, int port, std::string session_key, const LinkTimes& times,
            std::function<void()> wake)
      : TcpStream(times, std::move(wake)), session_key_(std::move(session_key)) {
    Start([this, host = std::move(host), port] { return Serve(host, port); });
  }
  ~TcpWriter() override {
    Close();
    Join();
  }

  void Write(uint64_t link_seq, std::span<const std::byte> bytes) override {
    if (!jobs_.TryPush({link_seq, bytes}))
      CHECK(jobs_.closed()) << "more than " << kMaxJobs << " slots";
  }
  std::optional<SlotEvent> Poll() override { return TcpStream::Poll(); }
  void Close() override {
    jobs_.Close();
    TcpStream::Close();
  }
  bool closed() const override { return TcpStream::closed(); }

 private:
  struct Job {
    uint64_t link_seq;
    std::span<const std::byte> bytes;
  };

  absl::Status Serve(const std::string& host, int port) {
    ASSIGN_OR_RETURN(Socket socket, ConnectTo(host, port, Limits(times_.link_up)));
    const int fd = Adopt(std::move(socket));
    const FrameBytes hello = EncodeFrameHeader(
        {.type = FrameType::kHello, .number = SessionId(session_key_)}, session_key_);
    RETURN_IF_ERROR(WriteAll(fd, hello, {}, Limits(times_.stall)));
    Report({.kind = SlotEvent::Kind::kConnected});
    while (!stop_) {
      const std::optional<Job> job = jobs_.PopUntil(RealClock()->Now() + kIdleSlice);
      if (!job) {
        RETURN_IF_ERROR(CheckPeer(fd));
        continue;
      }
      const FrameBytes header = EncodeFrameHeader(
          {.type = FrameType::kSlot, .number = job->link_seq, .length = job->bytes.size()},
          session_key_);
      const auto limit = times_.MoveLimit(static_cast<int64_t>(job->bytes.size()));
      RETURN_IF_ERROR(WriteAll(fd, header, job->bytes, Limits(limit)));
      Report({.kind = SlotEvent::Kind::kDone, .link_seq = job->link_seq});
    }
    return absl::CancelledError("the connection was closed here");
  }

  // Decode never sends on this connection: something to read is its end.
  static absl::Status CheckPeer(int fd) {
    std::byte byte{};
    const ssize_t count = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    return absl::UnavailableError(count == 0 ? "decode closed the data connection"
                                             : "the data connection was reset");
  }

  const std::string session_key_;
  BoundedQueue<Job> jobs_{kMaxJobs};
};

}  // namespace

// Readers by session, and the thread that brings connections to them.
class TcpListener::Acceptor {
 public:
  class Reader;

  explicit Acceptor(Socket socket) : socket_(std::move(socket)), wake_(eventfd(0, EFD_CLOEXEC)) {
    CHECK(wake_.valid()) << "eventfd";
    thread_ = std::thread([this] { Serve(); });
  }
  ~Acceptor() {
    stop_ = true;
    const uint64_t one = 1;
    CHECK_EQ(write(wake_.fd(), &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
    thread_.join();
  }

  void Add(uint64_t session, Reader* reader) {
    MutexLock lock(&mutex_);
    readers_[session] = reader;
  }
  void Remove(uint64_t session) {
    MutexLock lock(&mutex_);
    readers_.erase(session);
  }

 private:
  // A connection that has not said hello yet.
  struct Stranger {
    Socket socket;
    TimePoint deadline{};
    FrameBytes hello{};
    size_t have = 0;
  };

  void Serve();
  void AcceptAll();
  // False once it is known or cut off.
  bool Listen(Stranger& stranger);
  void Introduce(Stranger& stranger);

  const Socket socket_;
  const Socket wake_;
  std::atomic<bool> stop_ = false;
  std::list<Stranger> strangers_;  // the thread's
  Mutex mutex_;
  std::map<uint64_t, Reader*> readers_ GUARDED_BY(mutex_);
  std::thread thread_;
};

class TcpListener::Acceptor::Reader final : public SlotReader, private TcpStream {
 public:
  Reader(Acceptor* acceptor, std::string session_key, const LinkTimes& times,
         std::function<void()> wake)
      : TcpStream(times, std::move(wake)),
        acceptor_(acceptor),
        session_key_(std::move(session_key)) {
    acceptor_->Add(SessionId(session_key_), this);
    Start([this] { return Serve(); });
  }
  ~Reader() override {
    Close();
    Join();
  }

  void Expect(uint64_t link_seq, std::span<std::byte> slot) override {
    if (!expected_.TryPush({link_seq, slot})) {
      CHECK(expected_.closed()) << "more than " << kMaxJobs << " grants";
    }
  }
  std::optional<SlotEvent> Poll() override { return TcpStream::Poll(); }
  void Close() override {
    acceptor_->Remove(SessionId(session_key_));
    expected_.Close();
    connection_.Close();
    TcpStream::Close();
  }
  bool closed() const override { return TcpStream::closed(); }

  // The acceptor's. `hello` names this session; whether it knows the key is seen here.
  void Connected(Socket socket, const FrameHeader& hello) {
    if (!MacMatches(hello, session_key_)) {
      LOG_EVERY_SECONDS(WARNING, 5) << "data connection with a wrong key refused";
      return;
    }
    connection_.TryPush(std::move(socket));  // full: a second one for this session is dropped
  }

 private:
  struct Grant {
    uint64_t link_seq;
    std::span<std::byte> slot;
  };

  absl::Status Serve() {
    std::optional<Socket> socket = connection_.PopUntil(RealClock()->Now() + times_.link_up);
    if (!socket) return absl::DeadlineExceededError("prefill has not opened the data connection");
    const int fd = Adopt(*std::move(socket));
    Report({.kind = SlotEvent::Kind::kConnected});
    while (!stop_) {
      ASSIGN_OR_RETURN(const bool readable, WaitReadable(fd, Limits(kIdleSlice)));
      if (readable) RETURN_IF_ERROR(ReadSlot(fd));
    }
    return absl::CancelledError("the connection was closed here");
  }

  absl::Status ReadSlot(int fd) {
    FrameBytes bytes{};
    RETURN_IF_ERROR(ReadAll(fd, bytes, Limits(times_.stall)));
    ASSIGN_OR_RETURN(const FrameHeader header, ParseFrameHeader(bytes));
    if (!MacMatches(header, session_key_)) return absl::DataLossError("frame with a wrong MAC");
    const std::optional<Grant> grant = expected_.TryPop();
    if (!grant) {
      return absl::DataLossError(
          absl::StrCat("frame of offer ", header.number, " came without a grant"));
    }
    RETURN_IF_ERROR(CheckSlotFrame(header, grant->link_seq, grant->slot.size()));
    const auto limit = times_.MoveLimit(static_cast<int64_t>(grant->slot.size()));
    RETURN_IF_ERROR(ReadAll(fd, grant->slot, Limits(limit)));
    Report({.kind = SlotEvent::Kind::kDone, .link_seq = grant->link_seq});
    return absl::OkStatus();
  }

  Acceptor* const acceptor_;
  const std::string session_key_;
  BoundedQueue<Grant> expected_{kMaxJobs};
  BoundedQueue<Socket> connection_{1};
};

void TcpListener::Acceptor::Serve() {
  while (!stop_) {
    const short room = strangers_.size() < kMaxStrangers ? POLLIN : 0;
    std::vector<pollfd> entries = {{socket_.fd(), room, 0}, {wake_.fd(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_)
      entries.push_back({stranger.socket.fd(), POLLIN, 0});
    poll(entries.data(), entries.size(), static_cast<int>(kIdleSlice.count()));
    for (auto it = strangers_.begin(); it != strangers_.end();) {
      it = Listen(*it) ? std::next(it) : strangers_.erase(it);
    }
    AcceptAll();
  }
}

void TcpListener::Acceptor::AcceptAll() {
  while (strangers_.size() < kMaxStrangers) {
    Socket socket(accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) return;
    PrepareConnection(socket.fd());
    strangers_.push_back(
        {.socket = std::move(socket), .deadline = RealClock()->Now() + kHelloLimit});
  }
}

bool TcpListener::Acceptor::Listen(Stranger& stranger) {
  const ssize_t count = recv(stranger.socket.fd(), stranger.hello.data() + stranger.have,
                             stranger.hello.size() - stranger.have, 0);
  if (count > 0) stranger.have += static_cast<size_t>(count);
  const bool waiting = count < 0 && (errno == EAGAIN || errno == EINTR);
  if (count <= 0 && !waiting) return false;
  if (stranger.have < stranger.hello.size()) return RealClock()->Now() < stranger.deadline;
  Introduce(stranger);
  return false;
}

void TcpListener::Acceptor::Introduce(Stranger& stranger) {
  const absl::StatusOr<FrameHeader> hello = ParseFrameHeader(stranger.hello);
  if (!hello.ok() || hello->type != FrameType::kHello) {
    LOG_EVERY_SECONDS(WARNING, 5) << "data connection without a proper hello refused: "
                                  << hello.status().ToString();
    return;
  }
  MutexLock lock(&mutex_);
  const auto it = readers_.find(hello->number);
  if (it != readers_.end()) it->second->Connected(std::move(stranger.socket), *hello);
}

TcpDialer::TcpDialer(LinkTimes times, std::function<void()> wake)
    : times_(times), wake_(std::move(wake)) {}

std::unique_ptr<SlotWriter> TcpDialer::Connect(const std::string& host, int port,
                                               const std::string& session_key) {
  return std::make_unique<TcpWriter>(host, port, session_key, times_, wake_);
}

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Start(const std::string& host, int port,
                                                                LinkTimes times,
                                                                std::function<void()> wake) {
  ASSIGN_OR_RETURN(Listening listening, ListenOn(host, port));
  auto acceptor = std::make_unique<Acceptor>(std::move(listening.socket));
  return std::unique_ptr<TcpListener>(
      new TcpListener(std::move(acceptor), listening.port, times, std::move(wake)));
}

TcpListener::TcpListener(std::unique_ptr<Acceptor> acceptor, int port, LinkTimes times,
                         std::function<void()> wake)
    : acceptor_(std::move(acceptor)), port_(port), times_(times), wake_(std::move(wake)) {}

TcpListener::~TcpListener() = default;

std::unique_ptr<SlotReader> TcpListener::Open(const std::string& session_key) {
  return std::make_unique<Acceptor::Reader>(acceptor_.get(), session_key, times_, wake_);
}

}  // namespace lodestone
