#include "tests/wan/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/wan/sample_packets.h"

namespace isthmus::wan {
namespace {

constexpr std::size_t kSites = 3;
constexpr std::size_t kSegment = 1448;
constexpr std::size_t kTcpHeaders = kVirtioBytes + 20 + 32;

NetworkSettings network(const std::string& lines) {
  auto settings = parse_network_settings(lines, kSites);
  EXPECT_TRUE(settings) << settings.error().text();
  return settings.value();
}

struct Arrival {
  Nanoseconds at;
  Delivery delivery;
};

// All that arrives until `end`, each packet at its own time.
std::vector<Arrival> arrivals(Router& router, Nanoseconds end = INT64_MAX) {
  std::vector<Arrival> all;
  for (auto due = router.next_arrival(); due && *due <= end; due = router.next_arrival())
    while (auto delivery = router.receive(*due)) all.push_back({*due, std::move(*delivery)});
  return all;
}

// Of 1500 bytes on the wire.
Bytes datagram(std::size_t from = 0, std::size_t to = 1) {
  return udp_packet(sample_payload(1472), from, to);
}

// Sends datagrams along each of `paths` from 0 to 1 s, 24 Mbit/s each. Those of the same time go in
// any order: a full queue would else have room for the first alone.
constexpr int kDatagrams = 2000;
std::vector<Arrival> flood(Router& router, std::vector<std::pair<std::size_t, std::size_t>> paths) {
  std::vector<Arrival> all;
  Random random(9);
  for (int i = 0; i < kDatagrams; ++i) {
    const auto now = i * kSecond / kDatagrams;
    std::swap(paths.back(), paths[random.below(paths.size())]);
    for (const auto& [from, to] : paths) router.send(from, datagram(from, to), now);
    for (auto& arrival : arrivals(router, now)) all.push_back(std::move(arrival));
  }
  for (auto& arrival : arrivals(router)) all.push_back(std::move(arrival));
  return all;
}

double megabits(std::size_t datagrams) { return static_cast<double>(datagrams) * 0.012; }

std::size_t count_to(const std::vector<Arrival>& all, std::size_t site) {
  return static_cast<std::size_t>(std::count_if(
      all.begin(), all.end(), [&](const Arrival& a) { return a.delivery.to == site; }));
}

TEST(Router, AFlowHasThePathsDelayAndRate) {
  Router router(network("path 0 1 rate=12mbit delay=50ms queue=15kb"));
  const auto all = flood(router, {{0, 1}});
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all.front().at, 51 * kMillisecond);  // the delay, and a packet's time at the rate
  EXPECT_EQ(all.front().delivery.packet, datagram());
  // Half as many as were sent, one every millisecond; the queue of ten adds the last ones.
  for (std::size_t i = 1; i < all.size(); ++i)
    ASSERT_EQ(all[i].at - all[i - 1].at, kMillisecond) << i;
  EXPECT_NEAR(static_cast<double>(all.size()), 1000, 10);
  EXPECT_EQ(router.path_counts(0, 1).overflow + all.size(), std::size_t{kDatagrams});
  EXPECT_EQ(router.path_counts(0, 1).bytes, all.size() * 1500);
}

TEST(Router, WithoutSettingsEverythingArrivesAtOnce) {
  Router router(network(""));
  router.send(0, datagram(), 5);
  EXPECT_EQ(router.next_arrival(), 5);
  EXPECT_FALSE(router.receive(4));
  const auto delivery = router.receive(5);
  ASSERT_TRUE(delivery);
  EXPECT_EQ(delivery->to, 1u);
  EXPECT_EQ(router.next_arrival(), std::nullopt);
}

TEST(Router, WhatIsForNoOtherSiteIsDropped) {
  Router router(network(""));
  router.send(0, datagram(0, 0), 0);    // to itself
  router.send(0, datagram(0, 3), 0);    // there is none
  router.send(0, datagram(0, 254), 0);  // broadcast
  auto elsewhere = datagram();
  elsewhere[kVirtioBytes + 16] = 192;
  router.send(0, elsewhere, 0);
  router.send(0, Bytes(3), 0);
  EXPECT_EQ(router.next_arrival(), std::nullopt);
}

TEST(Router, APartitionStopsOnePathUntilItIsUpAgain) {
  Router router(network("default delay=10ms"));
  router.send(0, datagram(), 0);
  router.change(network("default delay=10ms\npath 0 1 down"), 1);
  router.send(0, datagram(), 2);
  router.send(1, datagram(1, 0), 2);
  router.send(0, datagram(0, 2), 2);
  const auto all = arrivals(router);
  ASSERT_EQ(all.size(), 3u);  // what was under way, and what goes elsewhere
  EXPECT_EQ(count_to(all, 1), 1u);
  EXPECT_EQ(router.path_counts(0, 1).lost, 1u);
  router.change(network("default delay=10ms"), kSecond);
  router.send(0, datagram(), kSecond);
  EXPECT_EQ(count_to(arrivals(router), 1), 1u);
}

TEST(Router, ADownAccessLineCutsOneDirectionOfASite) {
  Router router(network("uplink 0 down\ndownlink 2 down"));
  router.send(0, datagram(0, 1), 0);
  router.send(1, datagram(1, 2), 0);
  EXPECT_TRUE(arrivals(router).empty());
  router.send(1, datagram(1, 0), 0);
  router.send(2, datagram(2, 1), 0);
  EXPECT_EQ(arrivals(router).size(), 2u);
}

TEST(Router, PathsShareAnUplink) {
  Router router(network("uplink 0 rate=12mbit queue=15kb"));
  const auto all = flood(router, {{0, 1}, {0, 2}, {1, 2}});
  // Site 1's own uplink has no limit.
  EXPECT_NEAR(megabits(count_to(all, 1)), 6, 1);
  EXPECT_NEAR(megabits(count_to(all, 2)), 6 + 24, 1);
  EXPECT_NEAR(megabits(all.size()) - 24, 12, 0.2);
}

TEST(Router, SendersShareADownlink) {
  Router router(network("downlink 2 rate=12mbit queue=15kb\npath 0 2 delay=7ms"));
  const auto all = flood(router, {{0, 2}, {1, 2}, {0, 1}});
  EXPECT_NEAR(megabits(count_to(all, 2)), 12, 0.2);
  EXPECT_NEAR(megabits(count_to(all, 1)), 24, 0.001);
}

// What leaves a downlink late must not be overtaken by what comes to it late.
TEST(Router, ADownlinkKeepsTheOrder) {
  Router router(network("downlink 1 rate=12mbit queue=1mb"));
  for (std::uint8_t i = 0; i < 100; ++i) {
    auto packet = datagram();
    packet.back() = i;
    router.send(0, packet, i * 100 * kMicrosecond);
  }
  // Asked seldom, as on a busy machine.
  std::vector<std::uint8_t> order;
  for (Nanoseconds now = 0; now < kSecond; now += 7 * kMillisecond)
    while (const auto delivery = router.receive(now)) order.push_back(delivery->packet.back());
  ASSERT_EQ(order.size(), 100u);
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
}

std::size_t flipped_bits(std::span<const std::uint8_t> a, std::span<const std::uint8_t> b) {
  EXPECT_EQ(a.size(), b.size());
  std::size_t bits = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    bits += static_cast<std::size_t>(std::popcount(static_cast<std::uint8_t>(a[i] ^ b[i])));
  return bits;
}

TEST(Router, CorruptionFlipsOnePayloadBitOfEachSegment) {
  Router router(network("default corrupt=100%"));
  const auto packet = tcp_packet(sample_payload(5 * kSegment + 1));
  router.send(0, packet, 0);
  const auto all = arrivals(router);
  ASSERT_EQ(all.size(), 1u);
  const std::span<const std::uint8_t> before = packet, after = all[0].delivery.packet;
  ASSERT_EQ(before.size(), after.size());
  EXPECT_EQ(flipped_bits(before.first(kTcpHeaders), after.first(kTcpHeaders)), 0u);
  for (std::size_t i = 0; i < 6; ++i) {
    const auto offset = kTcpHeaders + i * kSegment, bytes = i < 5 ? kSegment : 1;
    EXPECT_EQ(flipped_bits(before.subspan(offset, bytes), after.subspan(offset, bytes)), 1u) << i;
  }
  EXPECT_EQ(router.path_counts(0, 1).corrupted, 6u);
}

TEST(Router, EveryPayloadBitCanBeFlipped) {
  Router router(network("default corrupt=100%"));
  const auto packet = udp_packet(sample_payload(2));
  std::vector<int> flips(16);
  for (int i = 0; i < 1000; ++i) {
    router.send(0, packet, i);
    const auto delivery = router.receive(i);
    ASSERT_TRUE(delivery);
    ASSERT_EQ(flipped_bits(packet, delivery->packet), 1u);
    for (std::size_t bit = 0; bit < 16; ++bit) {
      const auto at = packet.size() - 2 + bit / 8;
      flips[bit] += (packet[at] ^ delivery->packet[at]) >> bit % 8 & 1;
    }
  }
  for (const int count : flips) EXPECT_NEAR(count, 1000 / 16, 40);
}

TEST(Router, WhatCannotBeDamagedUnseenIsNot) {
  Router router(network("default corrupt=100%"));
  const auto no_payload = tcp_packet({});
  auto finished = datagram();
  auto header = virtio_header_of(finished);
  header.flags = 0;
  set_virtio_header(finished, header);
  for (const auto& packet : {no_payload, finished}) {
    router.send(0, packet, 0);
    const auto delivery = router.receive(0);
    ASSERT_TRUE(delivery);
    EXPECT_EQ(delivery->packet, packet);
  }
  EXPECT_EQ(router.path_counts(0, 1).corrupted, 0u);
}

TEST(Router, DuplicatesAreEqual) {
  Router router(network("path 0 1 dup=100% corrupt=100% delay=5ms"));
  router.send(0, datagram(), 0);
  const auto all = arrivals(router);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].delivery.packet, all[1].delivery.packet);
  EXPECT_EQ(router.path_counts(0, 1).duplicated, 1u);
}

TEST(Router, SegmentsOfASuperPacketAreLostOneByOne) {
  Router router(network("path 0 1 loss=10%"));
  const auto payload = sample_payload(40 * kSegment);
  const TcpSample sample;
  const auto packet = tcp_packet(payload, sample);
  std::size_t segments = 0;
  for (int i = 0; i < 1000; ++i) {
    router.send(0, packet, i);
    Bytes seen(payload.size());
    while (const auto delivery = router.receive(i)) {
      const auto& run = delivery->packet;
      const auto tcp = std::span(run).subspan(kVirtioBytes + 20);
      const auto offset = get32(tcp, 4) - sample.sequence;
      ASSERT_TRUE(std::equal(run.begin() + kTcpHeaders, run.end(), payload.begin() + offset));
      ASSERT_EQ(offset % kSegment, 0u);
      ASSERT_EQ((run.size() - kTcpHeaders) % kSegment, 0u);
      segments += (run.size() - kTcpHeaders) / kSegment;
    }
  }
  const double deviation = std::sqrt(40'000 * 0.1 * 0.9);
  EXPECT_NEAR(static_cast<double>(segments), 36'000, 4 * deviation);
  EXPECT_EQ(router.path_counts(0, 1).packets, segments);
  EXPECT_EQ(router.path_counts(0, 1).lost + segments, 40'000u);
}

// A super packet on a slow line arrives as it would have in small ones.
TEST(Router, ASuperPacketArrivesInPiecesOfAMillisecond) {
  for (const std::string line : {"path 0 1", "uplink 0", "downlink 1"}) {
    Router router(network(line + " rate=24mbit queue=1mb"));
    router.send(0, tcp_packet(sample_payload(40 * kSegment)), 0);
    const auto all = arrivals(router);
    ASSERT_EQ(all.size(), 20u) << line;  // two segments of half a millisecond each
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_EQ(all[i].at, static_cast<Nanoseconds>(i + 1) * kMillisecond) << line;
  }
}

std::string losses_with(const std::string& lines) {
  Router router(network(lines + "\ndefault loss=50%"));
  std::string fates;
  for (int i = 0; i < 64; ++i) {
    router.send(0, datagram(0, 1), i);
    router.send(0, datagram(0, 2), i);
    std::string arrived;
    while (const auto delivery = router.receive(i)) arrived += std::to_string(delivery->to);
    fates += arrived + ".";
  }
  return fates;
}

TEST(Router, TheSeedDecidesFates) {
  EXPECT_EQ(losses_with("seed 5"), losses_with("seed 5"));
  EXPECT_NE(losses_with("seed 5"), losses_with("seed 6"));
  // Each path has its own.
  const auto fates = losses_with("seed 5");
  EXPECT_NE(fates.find(".1."), std::string::npos);
  EXPECT_NE(fates.find(".2."), std::string::npos);
}

TEST(Router, StatisticsNameThePathsThatSawPackets) {
  Router router(network("path 0 1 loss=100%\nuplink 1 rate=1mbit queue=1kb"));
  router.send(0, datagram(0, 1), 0);
  router.send(1, datagram(1, 2), 0);
  router.send(2, datagram(2, 0), 0);
  EXPECT_EQ(router.statistics(),
            "path\tpackets\tbytes\tlost\toverflow\tduplicated\tcorrupted\n"
            "0->1\t0\t0\t1\t0\t0\t0\n"
            "2->0\t1\t1500\t0\t0\t0\t0\n"
            "uplink 1\t-\t-\t0\t1\t-\t-\n");
}

}  // namespace
}  // namespace isthmus::wan
