// What a sender learns of its connections while a link test goes on.
#include "inter/sending_watch.h"

#include <gtest/gtest.h>

#include <vector>

#include "inter/link_test_report.h"

namespace isthmus::inter {
namespace {

BulkPath a_path(ConnectionId connection, std::uint64_t arrived, std::uint64_t segments,
                std::uint64_t resent) {
  BulkPath path;
  path.connection = connection;
  path.tcp.congestion_control = "bbr";
  path.tcp.arrived_bytes = arrived;
  path.tcp.segments_sent = segments;
  path.tcp.segments_resent = resent;
  path.tcp.busy = kSecond;
  return path;
}

TEST(SendingWatch, LossesOfTheRampAndOtherConnectionsAreNotTheTests) {
  // What was sent before the test, and by a connection that it does not use.
  std::vector<BulkPath> paths = {a_path(1, 70'000, 500, 400), a_path(2, 0, 0, 0)};
  SendingWatch watch(paths);
  paths.push_back(a_path(3, 1'000'000, 9000, 9000));
  watch.look(0, paths);
  for (int i = 1; i <= 100; ++i) {
    auto& tcp = paths[i % 2].tcp;
    tcp.arrived_bytes += 10'000;  // each 10 ms
    tcp.segments_sent += 10;
    // The start-up fills the queue; later on one packet in a hundred is lost.
    tcp.segments_resent += i <= 30 ? 5 : i % 10 == 0;
    tcp.busy += 10 * kMillisecond;
    tcp.waiting_bytes = 100;
    paths[2].tcp.segments_resent += 100;
    watch.look(i * 10 * kMillisecond, paths);
    EXPECT_FALSE(watch.all_arrived());
  }
  paths[0].tcp.waiting_bytes = paths[1].tcp.waiting_bytes = 0;
  watch.look(1100 * kMillisecond, paths);
  EXPECT_TRUE(watch.all_arrived());
  // And one that goes leaves what it has sent.
  paths.erase(paths.begin());
  watch.look(1200 * kMillisecond, paths);
  const auto sent = watch.warm();
  EXPECT_EQ(sent.warm, 600 * kMillisecond);
  EXPECT_EQ(sent.arrived, 600'000U);
  EXPECT_EQ(sent.segments, 600U);
  EXPECT_EQ(sent.segments_resent, 6U);
  EXPECT_EQ(sent.busy, 600 * kMillisecond);
  EXPECT_EQ(sent.connections, 2U);
  EXPECT_EQ(sent.congestion_control, "bbr");
  LinkTestReport::Direction direction{sent, {.bits_per_second = 9e6, .warm = kSecond, .bytes = 0}};
  EXPECT_DOUBLE_EQ(direction.bits_per_second(), 8e6);
}

TEST(SendingWatch, WithoutAKernelThatTellsTheReceiverDoes) {
  SendingWatch watch({});
  watch.look(0, {});
  watch.look(kSecond, {});
  EXPECT_TRUE(watch.all_arrived());
  EXPECT_EQ(watch.warm().warm, 0);
  LinkTestReport::Direction direction{watch.warm(),
                                      {.bits_per_second = 9e6, .warm = kSecond, .bytes = 0}};
  EXPECT_DOUBLE_EQ(direction.bits_per_second(), 9e6);
  EXPECT_EQ(direction.warm(), kSecond);
}

}  // namespace
}  // namespace isthmus::inter
