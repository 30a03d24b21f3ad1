#include "inter/sim/access_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace isthmus::inter::sim {
namespace {

using testing::ElementsAre;

class AccessLinkTest : public testing::Test {
 protected:
  void push(std::size_t bytes) {
    link.push(bytes, [this] { through.push_back(simulation.now() / kMillisecond); });
  }
  void run() {
    while (!simulation.empty()) simulation.run_one();
  }
  Simulation simulation;
  AccessLink link{simulation, 1e6, 10'000};
  std::vector<Nanoseconds> through;  // ms
};

TEST_F(AccessLinkTest, SendsOnePieceAfterTheOtherAtItsRate) {
  push(5000);
  push(1000);
  EXPECT_EQ(link.wait(), 6 * kMillisecond);
  run();
  EXPECT_THAT(through, ElementsAre(5, 6));
  simulation.advance(20 * kMillisecond);
  push(2000);
  run();
  EXPECT_THAT(through, ElementsAre(5, 6, 22));
}

TEST_F(AccessLinkTest, HasRoomForItsQueue) {
  push(50'000);  // it was idle
  EXPECT_EQ(link.room(), 0U);
  run();
  push(4000);
  EXPECT_EQ(link.room(), 6000U);
  push(6000);
  EXPECT_EQ(link.room(), 0U);
  link.set_queue(12'000);
  EXPECT_EQ(link.room(), 2000U);
  link.set_queue(5000);
  EXPECT_EQ(link.room(), 0U);
}

TEST_F(AccessLinkTest, AnotherRateIsAlsoThatOfWhatIsUnderWay) {
  push(10'000);
  push(1000);
  simulation.advance(5 * kMillisecond);
  link.set_rate(1e4);
  simulation.advance(105 * kMillisecond);  // 5000 bytes, and 1000 more
  link.set_rate(1e6);
  run();
  EXPECT_THAT(through, ElementsAre(109, 110));
}

}  // namespace
}  // namespace isthmus::inter::sim
