#include "decode/service.h"

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "proto/convert.h"
#include "proto/grpc_status.h"

namespace lodestone {
namespace {

std::vector<LeaseId> LeasesOf(const google::protobuf::RepeatedField<uint64_t>& ids) {
  std::vector<LeaseId> leases;
  for (uint64_t id : ids) leases.push_back(LeaseId(id));
  return leases;
}

v1::StreamReply ReplyOf(std::vector<LeaseEvent> events) {
  v1::StreamReply reply;
  for (const LeaseEvent& event : events) {
    v1::LeaseEvent* out = reply.add_events();
    out->set_lease_id(event.lease.value());
    for (const GeneratedToken& token : event.tokens) *out->add_tokens() = ToProto(token);
    out->set_finish_reason(ToProto(event.finish));
    if (!event.error.ok()) *out->mutable_error() = ToProto(event.error);
  }
  return reply;
}

// One router's stream. Reads name leases; writes carry whatever the loop has added meanwhile, one
// at a time. The loop may hold the TokenStream longer than the call lives, so the link back to the
// reactor is cut in OnDone.
class StreamReactor final : public grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamReply> {
 public:
  explicit StreamReactor(DecodeWorker* worker)
      : worker_(worker),
        id_(worker->NewStreamId()),
        back_link_(std::make_shared<BackLink>(this)),
        stream_(std::make_shared<TokenStream>([link = back_link_] { link->Notify(); })) {}

  void Start() {
    if (!worker_->OpenStream(id_, stream_)) {
      return EndCall(grpc::Status(grpc::StatusCode::UNAVAILABLE, kLeaving));
    }
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return EndCall(grpc::Status::OK);
    if (!worker_->NameOnStream(id_, LeasesOf(request_.leases()), LeasesOf(request_.subscribe()))) {
      // Events of the last steps may still be on their way: the call ends after them.
      return stream_->End(absl::UnavailableError(kLeaving));
    }
    StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
    }
    if (!ok) return EndCall(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the router is gone"));
    WriteNext();
  }

  void OnCancel() override { EndCall(grpc::Status::CANCELLED); }

  void OnDone() override {
    back_link_->Cut();
    worker_->CloseStream(id_);
    delete this;
  }

 private:
  // From the token stream to the reactor while it lives.
  class BackLink {
   public:
    explicit BackLink(StreamReactor* reactor) : reactor_(reactor) {}
    void Notify() {
      MutexLock lock(&mutex_);
      if (reactor_ != nullptr) reactor_->WriteNext();
    }
    void Cut() {
      MutexLock lock(&mutex_);
      reactor_ = nullptr;
    }

   private:
    Mutex mutex_;
    StreamReactor* reactor_ GUARDED_BY(mutex_);
  };

  static constexpr char kLeaving[] = "the decode worker is shutting down";

  void WriteNext() {
    const absl::Status status =
        stream_->status();  // before TakeAll, which then gives the last events
    {
      MutexLock lock(&mutex_);
      if (writing_ || ended_) return;
      std::vector<LeaseEvent> events = stream_->TakeAll();
      if (!events.empty()) {
        reply_ = ReplyOf(std::move(events));
        writing_ = true;
        StartWrite(&reply_);
        return;
      }
    }
    if (!status.ok()) EndCall(ToGrpc(status));
  }

  void EndCall(const grpc::Status& status) {
    {
      MutexLock lock(&mutex_);
      if (std::exchange(ended_, true)) return;
    }
    Finish(status);
  }

  DecodeWorker* const worker_;
  const StreamId id_;
  const std::shared_ptr<BackLink> back_link_;
  const std::shared_ptr<TokenStream> stream_;
  v1::StreamRequest request_;
  v1::StreamReply reply_;  // valid while writing_
  Mutex mutex_;
  bool writing_ GUARDED_BY(mutex_) = false;
  bool ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerUnaryReactor* DecodeService::Reserve(grpc::CallbackServerContext* context,
                                                 const v1::ReserveRequest* request,
                                                 v1::ReserveReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  worker_->Reserve({.request_id = request->request_id(),
                    .attempt = request->attempt(),
                    .prompt_tokens = request->prompt_tokens(),
                    .max_new_tokens = request->max_new_tokens(),
                    .num_forks = request->num_forks()},
                   [reactor, reply](absl::StatusOr<ReserveReply> result) {
                     if (result.ok()) {
                       reply->set_lease_id(result->lease.value());
                       reply->set_reserved_bytes(result->reserved_bytes);
                       reply->set_free_bytes(result->free_bytes);
                       for (LeaseId fork : result->forks) reply->add_fork_lease_ids(fork.value());
                     }
                     reactor->Finish(ToGrpc(result.status()));
                   });
  return reactor;
}

grpc::ServerUnaryReactor* DecodeService::Cancel(grpc::CallbackServerContext* context,
                                                const v1::CancelRequest* request,
                                                v1::CancelReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  worker_->Cancel(LeaseId(request->lease_id()), [reactor, reply](int64_t released_bytes) {
    reply->set_released_bytes(released_bytes);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerBidiReactor<v1::StreamRequest, v1::StreamReply>* DecodeService::Stream(
    grpc::CallbackServerContext*) {
  auto* reactor = new StreamReactor(worker_);
  reactor->Start();
  return reactor;
}

}  // namespace lodestone
