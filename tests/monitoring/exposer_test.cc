#include "monitoring/exposer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The whole answer to GET /metrics on 127.0.0.1; "" if nobody answers within 10 s.
std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const timeval limit = {.tv_sec = 10, .tv_usec = 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  const std::string request =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      write(fd, request.data(), request.size()) == static_cast<ssize_t>(request.size())) {
    char buffer[4096];
    for (ssize_t got; (got = read(fd, buffer, sizeof(buffer))) > 0;) {
      answer.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  return answer;
}

TEST(MetricsExposerTest, ServesTheMetricsOnAFreePort) {
  Metrics metrics(kRoleDecode);
  metrics.Counter(MetricId::kGenerationTokens).Increment(3);
  const auto exposer = MetricsExposer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  EXPECT_GT((*exposer)->port(), 0);
  const std::string answer = Scrape((*exposer)->port());
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("lodestone_generation_tokens_total 3"));
}

TEST(MetricsExposerTest, ScrapeAfterTheMetricsDiedIsEmpty) {
  auto metrics = std::make_unique<Metrics>(kRoleDecode);
  const auto exposer = MetricsExposer::Start("127.0.0.1", 0, *metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  metrics.reset();
  const std::string answer = Scrape((*exposer)->port());
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, Not(HasSubstr("lodestone_")));
}

TEST(MetricsExposerTest, StopsWithoutWaitingForItsPoll) {
  Metrics metrics(kRoleDecode);
  auto exposer = MetricsExposer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const auto start = std::chrono::steady_clock::now();
  exposer->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1500));
}

TEST(MetricsExposerTest, PortInUseOrOutOfRangeIsAnErrorWithTheAddress) {
  Metrics metrics(kRoleDecode);
  const auto first = MetricsExposer::Start("127.0.0.1", 0, metrics);
  ASSERT_TRUE(first.ok());
  const auto second = MetricsExposer::Start("127.0.0.1", (*first)->port(), metrics);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string((*first)->port())));
  EXPECT_EQ(MetricsExposer::Start("127.0.0.1", 65536, metrics).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// One series of every metric of the role, so that promtool sees them all.
void TouchAll(MetricRole role, Metrics* metrics) {
  for (const MetricDef& def : MetricTable()) {
    if ((def.roles & role) == 0) continue;
    MetricLabels labels;
    for (std::string_view label : def.labels) labels[std::string(label)] = "x";
    switch (def.type) {
      case MetricType::kCounter:
        metrics->Counter(def.id, labels).Increment();
        break;
      case MetricType::kGauge:
        metrics->Gauge(def.id, labels).Set(1);
        break;
      case MetricType::kHistogram:
        metrics->Histogram(def.id, labels).Observe(1);
        break;
    }
  }
}

TEST(PromtoolTest, AcceptsTheTextOfEveryRole) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (Debian package prometheus)";
  }
  for (MetricRole role : {kRoleRouter, kRolePrefill, kRoleDecode}) {
    Metrics metrics(role);
    TouchAll(role, &metrics);
    const std::string path = testing::TempDir() + "lodestone_metrics_" + std::to_string(getpid());
    std::ofstream(path) << metrics.RenderText();
    EXPECT_EQ(std::system(("promtool check metrics <" + path).c_str()), 0) << metrics.RenderText();
    unlink(path.c_str());
  }
}

}  // namespace
}  // namespace lodestone
