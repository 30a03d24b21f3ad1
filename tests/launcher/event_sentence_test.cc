#include "launcher/event_sentence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace isthmus::launcher {
namespace {

using ::testing::HasSubstr;

LoggedEvent event_of(const std::string& line) { return parse_event(line).value(); }

TEST(EventSentence, SaysWhatToDoWhereOneCan) {
  EXPECT_THAT(sentence_of(event_of(R"({"severity":"warning","event":"wire_unreachable",)"
                                   R"("peer":"beta","lane":"control",)"
                                   R"("reason":"handshake_failed_auth"})")),
              HasSubstr("warning: beta does not know this site's key"));
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"wire_unreachable",)"
                                 R"("peer":"beta","lane":"bulk",)"
                                 R"("reason":"handshake_failed_auth"})")),
            "")
      << "once for both lanes";
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"wire_unreachable",)"
                                 R"("peer":"beta","lane":"bulk","address":"tcp://h:1",)"
                                 R"("reason":"refused"})")),
            "warning: beta cannot be reached for bulk data at tcp://h:1: refused");
  EXPECT_THAT(sentence_of(event_of(R"({"severity":"warning","event":"wire_unreachable",)"
                                   R"("peer":"beta","lane":"control","address":"tcp://h:0",)"
                                   R"("reason":"no_connection"})")),
              HasSubstr("beta cannot be reached at tcp://h:0: nothing answers there"));
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"ranks_hang",)"
                                 R"("why":"its ranks hang: see what they wait for"})")),
            "warning: its ranks hang: see what they wait for");
  const auto no_more = [](const std::string& here) {
    return event_of(R"({"severity":"info","event":"ranks_hang_no_more","here":)" + here + "}");
  };
  EXPECT_TRUE(is_for_people(no_more("true")));
  EXPECT_THAT(sentence_of(no_more("true")), HasSubstr("its ranks go on"));
  EXPECT_THAT(sentence_of(no_more("false")), HasSubstr("its ranks have gone"));
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"attach_refused","pid":7,)"
                                 R"("rank":0,"reason":"the disk is full"})")),
            "warning: the gateway does not take rank 0: the disk is full");
  const auto ended = [](const std::string& why) {
    return sentence_of(event_of(R"({"severity":"warning","event":"session_ended","peer":"beta",)"
                                R"("why":")" +
                                why + "\"}"));
  };
  EXPECT_THAT(ended("silence"), HasSubstr("with beta ended: nothing is heard of it"));
  EXPECT_THAT(sentence_of(event_of(R"({"severity":"warning","event":"window_full","peer":"beta",)"
                                   R"("window_bytes":268435456})")),
              HasSubstr("raise gateway.receive_window"));
  EXPECT_EQ(ended("it was stopped"), "warning: the session with beta ended: it was stopped");
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"gateway_away",)"
                                 R"("then":"waiting"})")),
            "warning: the gateway is away; the ranks wait until it is started again");
  EXPECT_EQ(
      sentence_of(event_of(R"({"severity":"alarm","event":"session_refused_by_peer",)"
                           R"("peer":"beta","why":"sync.codec: int8 at alpha, bf16 at beta"})")),
      "alarm: beta refuses a session: sync.codec: int8 at alpha, bf16 at beta");
}

TEST(EventSentence, ARateLimitThatChangesIsForPeopleOtherNewsAreNot) {
  const auto limit = event_of(
      R"({"severity":"info","event":"rate_limit","holds":"2 Mbit/s until 18:00, then 10 Mbit/s"})");
  EXPECT_TRUE(is_for_people(limit));
  EXPECT_EQ(sentence_of(limit), "the rate limit is 2 Mbit/s until 18:00, then 10 Mbit/s");
  const auto room = event_of(
      R"({"severity":"info","event":"disk_takes_again","what":"contributions","seconds":7})");
  EXPECT_TRUE(is_for_people(room));
  EXPECT_EQ(sentence_of(room), "the disk takes contributions again, after 7 s");
  EXPECT_FALSE(is_for_people(event_of(R"({"severity":"info","event":"record_decided"})")));
  EXPECT_TRUE(is_for_people(event_of(R"({"severity":"warning","event":"gateway_away"})")));
}

TEST(EventSentence, SaysWhoLacksTheLastStep) {
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"end_not_everywhere",)"
                                 R"("outer_step":8,"sites":"gamma"})")),
            "warning: gamma: not known to have the last step (8): start this site again when gamma "
            "is back, and it fetches it");
  for (const std::string sites : {"alpha and beta", "alpha, beta"})
    EXPECT_EQ(sentence_of(event_of(R"({"severity":"warning","event":"end_not_everywhere",)"
                                   R"("outer_step":8,"sites":")" +
                                   sites + "\"}")),
              "warning: " + sites +
                  ": not known to have the last step (8): start this site again when " + sites +
                  " are back, and they fetch it");
}

TEST(EventSentence, SaysThatASiteRunsTwice) {
  EXPECT_THAT(sentence_of(event_of(R"({"severity":"alarm","event":"duplicate_identity",)"
                                   R"("peer":"beta","boot":1,"boot_in_session":2})")),
              HasSubstr("alarm: another process says that it is beta: that site runs twice"));
}

TEST(EventSentence, WhatItDoesNotKnowIsShownAsItIs) {
  EXPECT_EQ(sentence_of(event_of(R"({"severity":"alarm","event":"odd","peer":"beta",)"
                                 R"("outer_step":3,"a":1,"b":"x"})")),
            "alarm: odd step 3 peer beta a=1 b=x");
}

}  // namespace
}  // namespace isthmus::launcher
