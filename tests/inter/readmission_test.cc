#include "inter/readmission.h"

#include <gtest/gtest.h>

namespace isthmus::inter {
namespace {

constexpr SiteId kIdler = 3;

class ReadmissionTest : public testing::Test {
 protected:
  // A record after which these are members, and that names something of those.
  void decide(std::vector<SiteId> members, const std::vector<SiteId>& named) {
    Record record;
    record.step = ++step;
    record.view.members = members_;
    record.next_view.members = members_ = std::move(members);
    for (const auto site : named) {
      Part part;
      part.site = site;
      record.parts.push_back(part);
    }
    readmission.note(record);
  }
  // Until it is due, from the next step on.
  std::uint64_t steps_until_due() {
    std::uint64_t wait = 0;
    while (!readmission.due(kIdler, step + 1 + wait)) ++wait;
    return wait;
  }
  void join_in_vain() {
    decide({1, 2, kIdler}, {1, 2});
    decide({1, 2}, {1, 2});
  }

  Readmission readmission;
  std::uint64_t step = 0;

 private:
  std::vector<SiteId> members_{1, 2};
};

TEST_F(ReadmissionTest, WhoJoinsInVainWaitsLongerEachTime) {
  EXPECT_EQ(steps_until_due(), 0U);
  join_in_vain();
  EXPECT_EQ(steps_until_due(), 1U);
  join_in_vain();
  EXPECT_EQ(steps_until_due(), 3U);
  for (int i = 0; i < 20; ++i) join_in_vain();
  EXPECT_EQ(steps_until_due(), 1023U);
}

TEST_F(ReadmissionTest, WhoContributesMayComeBackAtOnce) {
  join_in_vain();
  decide({1, 2, kIdler}, {1, 2});
  decide({1, 2, kIdler}, {1, 2, kIdler});
  decide({1, 2}, {1, 2});
  EXPECT_EQ(steps_until_due(), 0U);
  join_in_vain();
  EXPECT_EQ(steps_until_due(), 1U) << "counted anew";
}

// Of the sites that the run began with nothing is known yet.
TEST_F(ReadmissionTest, AFounderMayComeLate) {
  decide({1}, {1});
  EXPECT_TRUE(readmission.due(2, step + 1));
}

}  // namespace
}  // namespace isthmus::inter
