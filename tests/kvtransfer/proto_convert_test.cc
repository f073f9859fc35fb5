#include "kvtransfer/proto_convert.h"
#include "kvtransfer/transport.h"

#include <random>

#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

namespace lodestone {
namespace {

using google::protobuf::util::MessageDifferencer;

Manifest SomeManifest() {
  Manifest manifest{};
  for (size_t kind = 0; kind < manifest.size(); ++kind) {
    manifest[kind] = {.rows = static_cast<int64_t>(kind) + 1,
                      .bytes = 100 * (static_cast<int64_t>(kind) + 1),
                      .digest = ~uint64_t{0} - kind};
  }
  return manifest;
}

Handoff SomeHandoff() {
  Handoff handoff;
  handoff.lease = LeaseId(77);
  handoff.request_id = "request";
  handoff.tokens = {1, 2, 3};
  handoff.num_generated = 1;
  handoff.first_token = {
      .id = 9, .index = 1, .logprob = -0.5f, .top_logprobs = {{9, -0.5f}, {8, -1}}};
  handoff.sampling.temperature = 0.7;
  handoff.sampling.top_p = 0.9;
  handoff.sampling.top_k = 40;
  handoff.sampling.min_p = 0.05;
  handoff.sampling.seed = 1234567890123;
  handoff.sampling.stop_token_ids = {4, 5};
  handoff.sampling.ignore_eos = true;
  handoff.sampling.max_new_tokens = 100;
  handoff.sampling.min_new_tokens = 2;
  handoff.sampling.logprobs = true;
  handoff.sampling.top_logprobs = 3;
  handoff.sampling.repetition_penalty = 1.1;
  handoff.sampling.presence_penalty = 0.2;
  handoff.sampling.frequency_penalty = -0.3;
  handoff.sampling.logit_bias = {{3, 1.5f}, {8, -100.f}};
  handoff.totals = SomeManifest();
  return handoff;
}

TEST(ProtoConvertTest, RequestComesBackAsItWent) {
  ToDecode message;
  message.open = LinkOpen{.prefill_instance = InstanceId(1, 2).ToString(),
                          .decode_instance = InstanceId(3, 4).ToString(),
                          .layout = {{"index_k", "bf16"}, {"page", "256"}},
                          .transports = {{"nccl", "gpu-0"}, {"tcp", ""}},
                          .max_slot_bytes = 4096};
  message.offers.push_back({.link_seq = 5,
                            .lease = LeaseId(~uint64_t{0}),
                            .chunk = 3,
                            .from_tokens = 100,
                            .to_tokens = 200,
                            .final = true,
                            .first_row = 7,
                            .num_rows = 8,
                            .bytes = 4096,
                            .kinds = SomeManifest(),
                            .early = true,
                            .packing = true});
  message.handoffs.push_back(SomeHandoff());
  message.cancels.push_back({LeaseId(6), "why"});
  message.leases = {LeaseId(1), LeaseId(2)};
  const auto back = FromProto(ToProto(message));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->open->layout, message.open->layout);
  EXPECT_EQ(back->open->max_slot_bytes, 4096);
  EXPECT_EQ(back->open->transports, message.open->transports);
  EXPECT_EQ(back->open->wire_version, kLinkWireVersion);
  ASSERT_EQ(back->offers.size(), 1u);
  EXPECT_EQ(back->offers[0].lease, message.offers[0].lease);
  EXPECT_EQ(back->offers[0].kinds, message.offers[0].kinds);
  EXPECT_TRUE(back->offers[0].final);
  EXPECT_TRUE(back->offers[0].early);
  EXPECT_TRUE(back->offers[0].packing);
  ASSERT_EQ(back->handoffs.size(), 1u);
  EXPECT_EQ(back->handoffs[0].first_token, message.handoffs[0].first_token);
  EXPECT_EQ(back->handoffs[0].sampling.logit_bias, message.handoffs[0].sampling.logit_bias);
  EXPECT_EQ(back->handoffs[0].sampling.seed, message.handoffs[0].sampling.seed);
  EXPECT_EQ(back->handoffs[0].totals, message.handoffs[0].totals);
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), ToProto(message)));
}

TEST(ProtoConvertTest, ReplyComesBackAsItWent) {
  ToPrefill message;
  message.accept = LinkAccept{.decode_instance = "d",
                              .data_port = 8202,
                              .session_key = std::string(kSessionKeyBytes, '\xff'),
                              .slot_bytes = 10,
                              .slots = 2,
                              .transport = "nccl",
                              .early_slots = 3,
                              .fallback = "why"};
  message.offers = {{1, OfferVerdict::kReady, ""},
                    {2, OfferVerdict::kSkip, "gone"},
                    {3, OfferVerdict::kCommitted, ""},
                    {4, OfferVerdict::kCorrupt, "index_keys"}};
  message.handoffs = {{LeaseId(1), absl::OkStatus()}, {LeaseId(2), absl::DataLossError("rows")}};
  message.cancels.push_back({LeaseId(6), "why"});
  const auto back = FromProto(ToProto(message));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(back->refuse.ok());
  EXPECT_EQ(back->accept->session_key, message.accept->session_key);
  EXPECT_EQ(back->accept->transport, "nccl");
  EXPECT_EQ(back->accept->early_slots, 3);
  EXPECT_EQ(back->accept->fallback, "why");
  EXPECT_EQ(back->offers[3].verdict, OfferVerdict::kCorrupt);
  EXPECT_EQ(back->handoffs[1].status, message.handoffs[1].status);
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), ToProto(message)));
}

TEST(ProtoConvertTest, HeartbeatIsEmpty) {
  EXPECT_EQ(ToProto(ToDecode()).ByteSizeLong(), 0u);
  EXPECT_EQ(ToProto(ToPrefill()).ByteSizeLong(), 0u);
}

TEST(ProtoConvertTest, HostileValuesAreRefused) {
  const auto refused = [](const std::function<void(v1::LinkRequest&)>& change) {
    ToDecode message;
    message.open = LinkOpen{.prefill_instance = InstanceId(1, 2).ToString(), .max_slot_bytes = 1};
    message.offers.push_back({.kinds = SomeManifest()});
    message.handoffs.push_back(SomeHandoff());
    v1::LinkRequest proto = ToProto(message);
    EXPECT_TRUE(FromProto(proto).ok());
    change(proto);
    return !FromProto(proto).ok();
  };
  using Request = v1::LinkRequest;
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->set_from_tokens(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->set_to_tokens(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->set_first_row(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->set_num_rows(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->set_bytes(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->mutable_kinds(0)->set_kind(6); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->mutable_kinds(0)->set_kind(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->mutable_kinds(0)->set_kind(1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_offers(0)->mutable_kinds(0)->set_rows(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_handoffs(0)->set_num_generated(-1); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_handoffs(0)->set_num_generated(4); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_open()->set_prefill_instance_id("x"); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_open()->set_max_slot_bytes(0); }));
  EXPECT_TRUE(refused([](Request& r) { r.mutable_open()->mutable_layout()->set_fingerprint(1); }));
}

TEST(ProtoConvertTest, UnknownVerdictIsNotSuccess) {
  v1::LinkReply proto;
  proto.add_offers();
  EXPECT_FALSE(FromProto(proto).ok());
  proto.mutable_offers(0)->set_kind(static_cast<v1::OfferResult::Kind>(9));
  EXPECT_FALSE(FromProto(proto).ok());
}

TEST(ProtoConvertTest, NoiseNeverCrashes) {
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes(random() % 64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    if (v1::LinkRequest request; request.ParseFromString(bytes)) (void)FromProto(request);
    if (v1::LinkReply reply; reply.ParseFromString(bytes)) (void)FromProto(reply);
  }
}

}  // namespace
}  // namespace lodestone
