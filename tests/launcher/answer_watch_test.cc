#include "launcher/answer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::launcher {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;

class AnswerWatchTest : public testing::Test {
 protected:
  AnswerWatch watch{"alpha"};
};

TEST_F(AnswerWatchTest, WhoAnswersNoMoreHangsAfterAWhileAndIsSaidOnce) {
  EXPECT_EQ(watch.answered(5 * kSecond), std::nullopt);
  EXPECT_EQ(watch.silent(15 * kSecond), std::nullopt);
  EXPECT_EQ(watch.silent(5 * kSecond + AnswerWatch::kPatience - 1), std::nullopt);
  EXPECT_THAT(watch.silent(5 * kSecond + AnswerWatch::kPatience),
              Optional(AllOf(HasSubstr("alpha gateway hangs"), HasSubstr("for 30 s"))));
  EXPECT_EQ(watch.silent(100 * kSecond), std::nullopt);
}

TEST_F(AnswerWatchTest, ThatItAnswersAgainIsSaidOnceWhereItsSilenceWas) {
  (void)watch.answered(5 * kSecond);
  EXPECT_EQ(watch.silent(10 * kSecond), std::nullopt);
  EXPECT_EQ(watch.answered(15 * kSecond), std::nullopt);
  EXPECT_NE(watch.silent(60 * kSecond), std::nullopt);
  EXPECT_THAT(watch.answered(75 * kSecond), Optional(HasSubstr("again, after 60 s")));
  EXPECT_EQ(watch.answered(76 * kSecond), std::nullopt);
  EXPECT_NE(watch.silent(200 * kSecond), std::nullopt);
}

// One that is started again reads what its folder holds first.
TEST_F(AnswerWatchTest, WhoHasNotAnsweredYetDoesNotHang) {
  EXPECT_EQ(watch.silent(1000 * kSecond), std::nullopt);
  (void)watch.answered(1001 * kSecond);
  EXPECT_NE(watch.silent(1100 * kSecond), std::nullopt);
  watch.absent();
  EXPECT_EQ(watch.silent(2000 * kSecond), std::nullopt);
  EXPECT_EQ(watch.answered(2001 * kSecond), std::nullopt);
}

}  // namespace
}  // namespace isthmus::launcher
