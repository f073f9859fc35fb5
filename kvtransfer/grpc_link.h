// The control stream of links over gRPC (LinkService.Link): the prefill side dials, the decode side
// serves. Each stream has one reading and one writing thread, so there is never more than one write
// under way; the worker loops see queues only.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "kvtransfer/control.h"
#include "kvtransfer/link.h"
#include "proto/lodestone/v1/link.grpc.pb.h"

namespace lodestone {

// Prefill side. The channel of an address is kept for a minute after the last dial; its streams
// keep it alive beyond that. `wake` (may be empty) is called from I/O threads whenever Receive or
// status() has something new.
class GrpcDialer final : public ControlDialer {
 public:
  GrpcDialer(std::shared_ptr<grpc::ChannelCredentials> credentials, LinkTimes times = {},
             std::function<void()> wake = {});
  ~GrpcDialer() override;  // waits until all streams have ended. REQUIRES: no end is left

  std::unique_ptr<PrefillControl> Dial(const std::string& address) override;

 private:
  class Session;
  struct Channel {
    std::shared_ptr<grpc::Channel> channel;
    TimePoint last_dialled;
  };
  std::shared_ptr<grpc::Channel> ChannelTo(const std::string& address);
  void ReapEnded();

  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  const LinkTimes times_;
  const std::function<void()> wake_;
  std::map<std::string, Channel> channels_;  // by address
  std::list<std::unique_ptr<Session>> sessions_;
};

// Decode side: register it with the server, give it to the receiver.
class GrpcLinkService final : public v1::LinkService::Service, public ControlAcceptor {
 public:
  explicit GrpcLinkService(LinkTimes times = {}, std::function<void()> wake = {});
  ~GrpcLinkService() override;

  // gRPC's threads: runs as long as the stream.
  grpc::Status Link(grpc::ServerContext* context,
                    grpc::ServerReaderWriter<v1::LinkReply, v1::LinkRequest>* stream) override;

  // Receiver's thread.
  std::unique_ptr<DecodeControl> Accept() override;

  // No stream is accepted any more and those that are waiting end. Call before the server's
  // Shutdown.
  void Shutdown();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace lodestone
