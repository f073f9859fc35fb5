#include "cli/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/drain.h"

namespace lodestone {
namespace {

using testing::HasSubstr;

constexpr char kReadyz[] =
    R"({"ready":false,"reasons":["no decode worker is ready"],"workers":[)"
    R"({"role":"prefill","instance_id":"0123456789abcdef","address":"127.0.0.1:8101",)"
    R"("state":"ready","reason":"","free_bytes":5,"queued_tokens":7,"refused_links":[]},)"
    R"({"role":"decode","instance_id":"fedcba9876543210","address":"","state":"loading",)"
    R"("reason":"loaded 3 MiB of 25 MiB"}],"refused":[{"role":"decode","instance_id":"77",)"
    R"("address":"127.0.0.1:8201","reason":"vocab_size: router 1024, worker 2048"}]})";

ClusterView View() {
  ClusterView view = ParseReadyz(kReadyz).value();
  view.running = 3;
  v1::GetStatusReply status;
  status.set_used_pages(12);
  status.set_num_pages(400);
  status.set_reserved_bytes(1 << 20);
  v1::MemoryPoolStatus* pool = status.add_pools();
  pool->set_used_bytes(2 << 20);
  pool->set_capacity_bytes(64 << 20);
  status.mutable_load()->set_running_requests(2);
  status.mutable_load()->set_queued_requests(5);
  status.mutable_load()->set_queued_tokens(900);
  status.set_seconds_since_step(0.25);
  view.workers[0].status = status;
  return view;
}

TEST(StatusTest, TheTableHasARowForEachWorkerAndSaysWhatIsWrong) {
  const std::string table = StatusTable("http://127.0.0.1:8080", View());
  EXPECT_THAT(table, HasSubstr("router http://127.0.0.1:8080: not ready, 3 running, 0 queued"));
  EXPECT_THAT(table, HasSubstr("  no decode worker is ready\n"));
  EXPECT_THAT(table, HasSubstr("prefill  127.0.0.1:8101  01234567  ready    3.0 of 64.0  "
                               "12 of 400  2        5 (900 tokens)  0.2 s ago"));
  EXPECT_THAT(table, HasSubstr("decode   -               fedcba98  loading  -"));
  EXPECT_THAT(table, HasSubstr("loaded 3 MiB of 25 MiB\n"));
  EXPECT_THAT(table, HasSubstr("refused: decode 127.0.0.1:8201: vocab_size: router 1024"));
}

TEST(StatusTest, JsonHasTheSame) {
  const std::string json = StatusJson("http://127.0.0.1:8080", View());
  for (const char* text :
       {"\"ready\":false", "\"running\":3", "\"used_pages\":12", "\"num_pages\":400",
        "\"used_bytes\":3145728", "\"queued_tokens\":900", "\"state\":\"loading\"",
        "\"answers\":false", "\"refused\":[{", "worker 2048"}) {
    EXPECT_THAT(json, HasSubstr(text));
  }
}

// A prefill worker and two decode workers, of which it has a link to the first.
ClusterView LinkedView(const v1::LinkStatus& link) {
  ClusterView view;
  view.workers = {{.role = "prefill", .instance_id = "p0", .address = "a:1", .state = "ready"},
                  {.role = "decode", .instance_id = "d0", .address = "b:2", .state = "ready"},
                  {.role = "decode", .instance_id = "d1", .address = "c:3", .state = "ready"},
                  {.role = "decode", .instance_id = "d2", .state = "loading"}};
  view.workers[0].status.emplace();
  *view.workers[0].status->add_links() = link;
  view.workers[0].status->mutable_links(0)->set_decode_instance_id("d0");
  return view;
}

TEST(StatusTest, EveryPairHasItsTransportAndWhyItIsNotABetterOne) {
  v1::LinkStatus link;
  link.set_up(true);
  link.set_transport("tcp");
  link.set_reason("decode worker has no nccl: --device is cpu");
  const ClusterView view = LinkedView(link);
  EXPECT_THAT(StatusTable("u", view),
              HasSubstr("prefill  decode  link  transport\n"
                        "a:1      b:2     up    tcp        decode worker has no nccl: "
                        "--device is cpu\n"
                        "a:1      c:3     none  -\n"));
  EXPECT_THAT(
      StatusJson("u", view),
      HasSubstr(R"("links":[{"prefill":"p0","decode":"d0","up":true,"transport":"tcp",)"
                R"("reason":"decode worker has no nccl: --device is cpu"},)"
                R"({"prefill":"p0","decode":"d1","up":false,"transport":"","reason":""}])"));
}

TEST(StatusTest, ALinkThatIsNotUpSaysWhy) {
  v1::LinkStatus link;
  link.set_reason("FAILED_PRECONDITION: refused: index_k: bf16 here, fp8 there");
  EXPECT_THAT(StatusTable("u", LinkedView(link)),
              HasSubstr("a:1      b:2     closed  -          FAILED_PRECONDITION: refused"));
  link.set_transport("nccl");
  link.set_reason("");  // it was idle
  EXPECT_THAT(StatusTable("u", LinkedView(link)), HasSubstr("b:2     closed  nccl\n"));
}

TEST(StatusTest, PrefillWorkersComeFirstThenAddressesInOrder) {
  const auto worker = [](const std::string& role, const std::string& address) {
    return R"({"role":")" + role + R"(","instance_id":"1","address":")" + address +
           R"(","state":"ready","reason":""})";
  };
  const ClusterView view =
      ParseReadyz(R"({"ready":true,"reasons":[],"workers":[)" + worker("decode", "b:2") + "," +
                  worker("prefill", "b:4") + "," + worker("decode", "a:1") + "," +
                  worker("prefill", "a:3") + R"(],"refused":[]})")
          .value();
  std::string order;
  for (const WorkerView& shown : view.workers) order += shown.role + " " + shown.address + ",";
  EXPECT_EQ(order, "prefill a:3,prefill b:4,decode a:1,decode b:2,");
}

TEST(StatusTest, AnotherServersAnswerIsAnError) {
  for (const char* body : {"", "[]", "{}", "not json", R"({"ready":true})"}) {
    EXPECT_EQ(ParseReadyz(body).status().code(), absl::StatusCode::kInvalidArgument) << body;
  }
}

TEST(StatusTest, MetricValuesAreFoundByTheirWholeName) {
  const std::string page = "# HELP a b\na_b 3\na 4.5\na{x=\"y\"} 6\n";
  EXPECT_EQ(MetricValue(page, "a"), 4.5);
  EXPECT_EQ(MetricValue(page, "a{x=\"y\"}"), 6);
  EXPECT_EQ(MetricValue(page, "b"), 0);
}

TEST(DrainConfigTest, NeedsWorkersOrARole) {
  EXPECT_FALSE(DrainConfig().Validate().ok());
  DrainConfig both;
  both.workers = {"127.0.0.1:1"};
  EXPECT_TRUE(both.Validate().ok());
  both.role = "decode";
  EXPECT_FALSE(both.Validate().ok());
  DrainConfig without_time;
  without_time.role = "all";
  without_time.drain_timeout = std::chrono::milliseconds(0);
  EXPECT_THAT(std::string(without_time.Validate().message()), HasSubstr("0 ms"));
  DrainConfig by_name;
  by_name.workers = {"127.0.0.1:1", "decode-0"};
  EXPECT_THAT(std::string(by_name.Validate().message()), HasSubstr("\"decode-0\", expected HOST"));
}

}  // namespace
}  // namespace lodestone
