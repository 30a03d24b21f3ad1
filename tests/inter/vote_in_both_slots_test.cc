// A vote that others have heard of is in both slots of its file: where the disk forgets one, the
// other is no earlier vote.
#include <gtest/gtest.h>

#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{1} << 18;

// Step and vote, without the number of the write before them.
Bytes vote_in(const Bytes& file, std::size_t slot) {
  const auto all = std::span(file).subspan(slot * kSlotBytes);
  const auto length = ByteReader(all).get<std::uint32_t>();
  const auto vote = all.subspan(4 + 16, length - 16 - 32);
  return {vote.begin(), vote.end()};
}

TEST(VoteInBothSlotsTest, SurvivesTheLossOfEither) {
  for (const std::size_t lost : {0, 1}) {
    ScriptedFederation federation(options_of({2 * kSecond, 2 * kSecond}));
    ASSERT_TRUE(federation.run_until([&] { return federation.step(2) >= 3; }, 60 * kSecond));
    federation.run_for(kSecond);  // it computes, and nothing is voted on
    federation.kill(2);
    auto& disk = federation.disk(2);
    auto file = *read_file(disk, "outer/vote", 1 << 20);
    const auto vote = vote_in(file, 0);
    EXPECT_EQ(vote, vote_in(file, 1));
    EXPECT_EQ(ByteReader(vote).get<std::uint64_t>(), federation.step(1));
    file[lost * kSlotBytes + 40] ^= std::byte{1};
    ASSERT_TRUE(replace_file(disk, "outer/vote", file));
    federation.start(2);
    ASSERT_TRUE(federation.run_until([&] { return federation.finished(); }, 600 * kSecond));
    EXPECT_EQ(federation.events(2, "file_damaged"), 1U);
    EXPECT_EQ(federation.gateway(1).root(), federation.gateway(2).root());
  }
}

}  // namespace
}  // namespace isthmus::inter
