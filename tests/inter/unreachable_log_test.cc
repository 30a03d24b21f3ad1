#include "inter/unreachable_log.h"

#include <gtest/gtest.h>

#include "tests/inter/link_world.h"

namespace isthmus::inter {
namespace {

class UnreachableLogTest : public testing::Test {
 protected:
  void failed(Lane lane, const std::string& reason) {
    said_.failed(lane, simulation_.now(), "tcp://b:7700", reason);
  }
  void up(Lane lane) { said_.up(lane, simulation_.now()); }
  void down(Lane lane) { said_.down(lane, simulation_.now()); }
  void pass(Nanoseconds time) { simulation_.advance(simulation_.now() + time); }
  std::size_t lines() const { return log_.count("wire_unreachable"); }

  sim::Simulation simulation_;
  RecordedLog log_{simulation_, "alpha"};
  UnreachableLog said_{log_.log, "beta"};
};

TEST_F(UnreachableLogTest, EachReasonOnceUntilItIsReached) {
  for (int i = 0; i < 5; ++i) {
    failed(Lane::control, "no_connection");
    failed(Lane::control, "no handshake in time");
  }
  EXPECT_EQ(lines(), 2U);
  up(Lane::control);
  failed(Lane::control, "no_connection");
  EXPECT_EQ(lines(), 2U) << "it is reached on another connection";
  down(Lane::control);
  pass(30 * kSecond);
  failed(Lane::control, "no_connection");
  EXPECT_EQ(lines(), 3U);
}

TEST_F(UnreachableLogTest, NotWithinHalfAMinuteOfAConnection) {
  up(Lane::control);
  up(Lane::bulk);
  pass(5 * kSecond);
  down(Lane::bulk);
  pass(29 * kSecond);
  failed(Lane::bulk, "no connection in time");
  EXPECT_EQ(lines(), 0U);
  pass(kSecond);
  failed(Lane::bulk, "no connection in time");
  EXPECT_EQ(lines(), 1U);
  down(Lane::control);
  failed(Lane::control, "no_connection");
  EXPECT_EQ(lines(), 1U);
  pass(30 * kSecond);
  failed(Lane::control, "no_connection");
  EXPECT_EQ(lines(), 2U);
}

TEST_F(UnreachableLogTest, WhoComesAndGoesAllTheTimeIsTold) {
  for (int i = 1; i <= 10; ++i) {
    up(Lane::control);
    pass(kSecond);
    down(Lane::control);
    failed(Lane::control, "no_connection");
    EXPECT_EQ(lines(), i);
    pass(9 * kSecond);
  }
}

TEST_F(UnreachableLogTest, OfTheBulkLaneOnlyWhatTheControlLaneDoesNotSay) {
  failed(Lane::bulk, "Connection refused");
  EXPECT_EQ(lines(), 0U);
  up(Lane::control);
  for (int connection = 0; connection < 4; ++connection) failed(Lane::bulk, "Connection refused");
  EXPECT_EQ(lines(), 1U);
  down(Lane::control);
  pass(30 * kSecond);
  failed(Lane::control, "no_connection");
  EXPECT_EQ(lines(), 2U);
}

TEST_F(UnreachableLogTest, ReasonsAreNotKeptWithoutEnd) {
  for (int i = 0; i < 100; ++i) failed(Lane::control, std::to_string(i));
  EXPECT_EQ(lines(), 8U);
}

}  // namespace
}  // namespace isthmus::inter
