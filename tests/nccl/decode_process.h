// A DecodeEnd over NCCL that is a process of its own, asked over two pipes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvtransfer/nccl/transport.h"
#include "tests/nccl/decode_end.h"

namespace lodestone::nccl {

// An end of links that wakes `waker`.
std::unique_ptr<Endpoint> MakeWakingEndpoint(Side side, DeviceId device, int ctas,
                                             std::shared_ptr<Waker> waker);

class DecodeProcess final : public DecodeEnd {
 public:
  // The test fails if the process does not come up; what is asked of it then is empty.
  DecodeProcess(const EndOptions& end, int ctas);
  ~DecodeProcess() override;  // ends it and waits

  InstanceId instance() const override { return instance_; }
  std::string address() const override { return address_; }
  std::vector<LeaseId> Reserve(int64_t tokens, int count) override;
  TimePoint adopted_at() override;
  std::vector<std::byte> Sample(LeaseId lease, int64_t tokens) override;
  void Free(const std::vector<LeaseId>& leases) override;
  std::string Phases() override;

 private:
  // The answer's bytes; the test fails if there is none within half a minute.
  std::string Ask(int64_t what, int64_t a = 0, int64_t b = 0);
  std::string Answer();

  int pid_ = -1;
  int questions_ = -1;
  int answers_ = -1;
  InstanceId instance_;
  std::string address_;
};

// What main() runs if this process was started as one of these; its exit status.
std::optional<int> RunAsDecodeProcess();

}  // namespace lodestone::nccl
