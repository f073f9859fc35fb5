#include "monitoring/exposer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <prometheus/exposer.h>

namespace lodestone {
namespace {

// Opens and closes one connection. Only for IPv4 addresses; does nothing for others.
void Knock(const std::string& host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) return;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  // The attempt alone is the knock, whatever becomes of it.
  (void)connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  close(fd);
}

}  // namespace

MetricsExposer::MetricsExposer(std::unique_ptr<prometheus::Exposer> exposer, std::string host,
                               int port)
    : exposer_(std::move(exposer)), host_(std::move(host)), port_(port) {}

// The HTTP server looks at its stop flag only after a connection or every 2 s, which would make
// every process take 2 s to end; so connections are offered until it has stopped.
MetricsExposer::~MetricsExposer() {
  std::atomic<bool> stopped{false};
  std::thread knocker([&] {
    while (!stopped) {
      Knock(host_, port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  });
  exposer_.reset();
  stopped = true;
  knocker.join();
}

absl::StatusOr<std::unique_ptr<MetricsExposer>> MetricsExposer::Start(const std::string& host,
                                                                      int port,
                                                                      const Metrics& metrics) {
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("metrics port is ", port, ", must be 0 to 65535"));
  }
  const std::string address = absl::StrCat(host, ":", port);
  try {
    auto exposer = std::make_unique<prometheus::Exposer>(address);
    exposer->RegisterCollectable(metrics.collectable());
    const std::vector<int> ports = exposer->GetListeningPorts();
    if (ports.empty()) {
      return absl::UnavailableError(absl::StrCat("cannot serve metrics on ", address));
    }
    return std::unique_ptr<MetricsExposer>(
        new MetricsExposer(std::move(exposer), host, ports.front()));
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on ", address, ": ", error.what()));
  }
}

}  // namespace lodestone
