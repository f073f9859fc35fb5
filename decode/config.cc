#include "decode/config.h"

#include <string>

namespace lodestone {

absl::StatusOr<int> DataPort(const DecodeConfig& config) {
  int64_t port = config.data_port;
  if (port == -1) port = config.grpc_port == 0 ? 0 : config.grpc_port + 1;
  if (port < 0 || port > 65'535) {
    return absl::InvalidArgumentError("the data port would be " + std::to_string(port) +
                                      ", must be 0 to 65535 (--data-port)");
  }
  return static_cast<int>(port);
}

}  // namespace lodestone
