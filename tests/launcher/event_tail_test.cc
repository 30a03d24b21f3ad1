#include "launcher/event_tail.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "base/event_log.h"
#include "tests/base/temporary_folder.h"

namespace isthmus::launcher {
namespace {

class EventTailTest : public ::testing::Test {
 protected:
  void append(const std::string& text) { std::ofstream(path_, std::ios::app) << text; }

  const TemporaryFolder folder_;
  const std::string path_ = folder_ / "events.jsonl";
};

TEST_F(EventTailTest, ReadsWhatTheLogWrites) {
  const auto clock = make_system_clock();
  EventLog log(*clock, "alpha");
  log.add(*make_file_sink(path_));
  log.warning("step_applied", {"beta", 3},
              {{"seconds", 0.82}, {"tokens", 20480}, {"note", "a \"b\""}});
  EventTail tail(path_, EventTail::From::beginning);
  const auto events = tail.poll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].id, "step_applied");
  EXPECT_EQ(events[0].severity, "warning");
  EXPECT_EQ(events[0].site, "alpha");
  EXPECT_EQ(events[0].peer, "beta");
  EXPECT_EQ(events[0].outer_step, 3);
  EXPECT_EQ(events[0].field("seconds"), "0.82");
  EXPECT_EQ(events[0].field("tokens"), "20480");
  EXPECT_EQ(events[0].field("note"), "a \"b\"");
  EXPECT_EQ(events[0].field("absent"), "");
  EXPECT_TRUE(tail.poll().empty());
}

TEST_F(EventTailTest, HalfALineIsReadWhenItIsWhole) {
  EventTail tail(path_, EventTail::From::end);
  EXPECT_TRUE(tail.poll().empty());  // no file yet
  append("{\"event\":\"a\"}\n{\"eve");
  EXPECT_EQ(tail.poll().size(), 1U);
  append("nt\":\"b\"}\n");
  const auto events = tail.poll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].id, "b");
}

// Of a long file the newest lines are what counts.
TEST_F(EventTailTest, NearTheEndOnePollReadsTheLastLine) {
  std::string text;
  for (int i = 0; text.size() < 3 * EventTail::kPollBytesMax; ++i)
    text +=
        "{\"event\":\"e" + std::to_string(i) + "\",\"filler\":\"" + std::string(90, 'x') + "\"}\n";
  append(text + "{\"event\":\"last\"}\n");
  EventTail tail(path_, EventTail::From::near_end);
  const auto events = tail.poll();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.back().id, "last");
  EXPECT_TRUE(tail.poll().empty());
  append("{\"event\":\"more\"}\n");
  EXPECT_EQ(tail.poll().size(), 1U);
}

TEST_F(EventTailTest, NearTheEndOfAShortFileIsAllOfIt) {
  append("{\"event\":\"a\"}\n{\"event\":\"b\"}\n");
  EXPECT_EQ(EventTail(path_, EventTail::From::near_end).poll().size(), 2U);
}

TEST_F(EventTailTest, StartsAtTheEndWhenAsked) {
  append("{\"event\":\"old\"}\n");
  EventTail tail(path_, EventTail::From::end);
  append("{\"event\":\"new\"}\n");
  const auto events = tail.poll();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].id, "new");
}

TEST_F(EventTailTest, SkipsWhatIsNoEvent) {
  append("\nnonsense\n[1]\n{}\n{\"event\":5,\"time\":\"x\",\"outer_step\":\"y\"}\n\xff\xfe\n");
  append(std::string(5000, 'x') + "\n{\"event\":\"after\"}\n");
  EventTail tail(path_, EventTail::From::beginning);
  std::vector<std::string> ids;
  for (int i = 0; i < 40; ++i)
    for (const auto& event : tail.poll(256)) ids.push_back(event.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"5", "after"}));
}

}  // namespace
}  // namespace isthmus::launcher
