// What an OuterStore still has after crashes.
#include "inter/outer_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "inter/sim/simulated_keys.h"
#include "inter/sim/simulation.h"
#include "tests/base/temporary_folder.h"
#include "tests/inter/outer_store_fixture.h"

namespace isthmus::inter {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST_F(OuterStoreTest, ShortAndLongChunksComeBack) {
  ContributionStore contributions(disk, "contributions");
  const sim::SimulatedSigner signer(1);
  auto file = contributions.create(3, sign(signer, 1, MessageType::open, encode(Open{})));
  ASSERT_TRUE(file);
  std::vector<StoredChunk> chunks;
  for (const std::size_t bytes : {30, 4088, 4089, 65535, 65536, 70'000, 1 << 20, 1}) {
    const auto index = static_cast<std::uint32_t>(chunks.size());
    chunks.emplace_back(index, Bytes(bytes, static_cast<std::byte>(index + 1)));
  }
  const auto all = std::span(chunks);
  ASSERT_TRUE((*file)->add(all.first(1)));
  ASSERT_TRUE((*file)->add(all.subspan(1, 4)));
  ASSERT_TRUE((*file)->add(all.subspan(5)));
  ASSERT_TRUE((*file)->add_close(sign(signer, 1, MessageType::close, encode(Close{}))));
  const auto stored = contributions.read(3, 1);
  ASSERT_TRUE(stored);
  ASSERT_EQ(stored->chunks.size(), chunks.size());
  for (std::uint32_t i = 0; i < chunks.size(); ++i) {
    EXPECT_EQ(stored->chunks[i].first, i);
    EXPECT_TRUE(std::ranges::equal(stored->chunks[i].second.bytes(), chunks[i].second.bytes()))
        << i;
  }
  EXPECT_TRUE(stored->close);
}

// Of both feedbacks that there are, as the newer one may be given up.
TEST_F(OuterStoreTest, OfOldContributionsThoseStayThatFeedbackIsMadeOf) {
  ContributionStore contributions(disk, "contributions");
  for (std::uint64_t step = 1; step <= 6; ++step)
    for (const SiteId site : {1, 2})
      ASSERT_TRUE(contributions.create(
          step, sign(sim::SimulatedSigner(site), site, MessageType::open, encode(Open{}))));
  ASSERT_TRUE(contributions.remove_below(5, std::array<std::uint64_t, 2>{4, 2}, 2));
  EXPECT_THAT(*disk.list("contributions"),
              testing::UnorderedElementsAre("00000002-2", "00000004-2", "00000005-1", "00000005-2",
                                            "00000006-1", "00000006-2"));
}

// Where a full disk lets nothing begin, what is kept for sites that return goes.
TEST_F(OuterStoreTest, RoomIsMadeOfWhatIsKeptForOthers) {
  OuterStore store(disk, "outer");
  ASSERT_TRUE(store.load(kVoteFile));
  for (std::uint64_t step = 1; step <= 6; ++step) {
    Certificate certificate;
    certificate.record = sample_record(step, 2);
    ASSERT_TRUE(store.append_record(certificate));
    for (const SiteId site : {1, 2})
      ASSERT_TRUE(store.contributions().create(
          step, sign(sim::SimulatedSigner(site), site, MessageType::open, encode(Open{}))));
  }
  ASSERT_TRUE(write_feedback(store, feedback_of(2, 1)));
  OuterState state{.step = 5, .record = {}, .agreed = {1, 2, 3, 4, 5}, .momentum = {}};
  const auto file = store.begin_state(state, state_root(layout, state));
  ASSERT_TRUE(file);
  while (*(*file)->write_slice()) {
  }
  EXPECT_EQ(*store.remove_kept_for_others(1), 4U);
  EXPECT_THAT(*disk.list(store.contributions().folder()),
              testing::UnorderedElementsAre("00000002-1", "00000004-1", "00000004-2", "00000005-1",
                                            "00000005-2", "00000006-1", "00000006-2"));
}

// Wherever a start finds no room: once there is some, it knows what it knew before.
TEST_F(OuterStoreTest, WhatFindsNoRoomIsLoadedWholeOnceThereIs) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    for (std::uint64_t step = 1; step <= 3; ++step) {
      Certificate certificate;
      certificate.record = sample_record(step, 2);
      ASSERT_TRUE(store.append_record(certificate));
    }
    ASSERT_TRUE(store.write_vote(4, Vote{.promised = 5, .accepted = {}}));
    ASSERT_TRUE(write_feedback(store, feedback_of(2, 1)));
  }
  std::size_t refused = 0;
  for (std::size_t free = 0;; free += 8) {
    ASSERT_TRUE(disk.remove("outer/run.copy"));  // it is made anew
    disk.set_faults({.room = disk.used_bytes() + free});
    OuterStore store(disk, "outer");
    auto loaded = store.load(kVoteFile + 1);
    const bool fits = loaded.has_value();
    disk.set_faults({});
    if (!fits) {
      ++refused;
      EXPECT_EQ(loaded.error().code, ErrorCode::disk_full);
      loaded = store.load(kVoteFile + 1);
    }
    ASSERT_TRUE(loaded) << free << " " << loaded.error().text();
    EXPECT_EQ(loaded->vote_file, kVoteFile) << free;
    EXPECT_EQ(loaded->vote_step, 4U) << free;
    EXPECT_EQ(loaded->vote.promised, 5U) << free;
    EXPECT_EQ(loaded->records.size(), 3U) << free;
    EXPECT_EQ(loaded->feedbacks.size(), 1U) << free;
    ASSERT_TRUE(loaded->genesis) << free;
    if (fits) break;
  }
  EXPECT_GT(refused, 10U);
}

TEST_F(OuterStoreTest, FeedbackThatCountsOutlivesAttemptsThatNeverClose) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    const auto first = feedback_of(1, 1);
    ASSERT_TRUE(write_feedback(store, first));
    store.settle_feedback(first.step, first.root);
    ASSERT_TRUE(write_feedback(store, feedback_of(2, 2)));
    ASSERT_TRUE(write_feedback(store, feedback_of(2, 3)));  // the disk refused its close
    disk.crash();
  }
  EXPECT_THAT(steps_on_disk(), ElementsAre(2, 1));
  for (int crashes = 0; crashes < 3; ++crashes) {
    begin_again(1, feedback_of(2, 4 + static_cast<float>(crashes)));
    EXPECT_THAT(steps_on_disk(), ElementsAre(2, 1)) << crashes;
  }
  begin_again(2, feedback_of(3, 9));
  EXPECT_THAT(steps_on_disk(), ElementsAre(3, 2));
}

// A crash, or another version, must not look like a vote that was never cast.
TEST_F(OuterStoreTest, AVoteThatCannotBeReadIsNoVoteThatWasNeverCast) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    ASSERT_TRUE(store.write_vote(3, Vote{.promised = 5, .accepted = {}}));
  }
  const auto path = std::string("outer/vote");
  const auto bytes = *read_file(disk, path, 1 << 20);
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1} << 18}) {
    // Longer by a byte, under a right checksum.
    auto spoilt = bytes;
    const auto length = ByteReader(std::span(spoilt).subspan(slot)).get<std::uint32_t>();
    const auto end = slot + 4 + length - 32;
    spoilt.resize(std::max(spoilt.size(), end + 33));
    spoilt[end] = std::byte{1};
    const auto digest = security::blake2b(std::span(spoilt).subspan(slot + 4, length - 32 + 1));
    std::copy(digest.bytes.begin(), digest.bytes.end(),
              spoilt.begin() + static_cast<std::ptrdiff_t>(end + 1));
    const auto longer = ByteWriter().put(length + 1).take();
    std::copy(longer.begin(), longer.end(), spoilt.begin() + static_cast<std::ptrdiff_t>(slot));
    ASSERT_TRUE(replace_file(disk, path, spoilt));
    OuterStore store(disk, "outer");
    const auto loaded = store.load(kVoteFile);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, ErrorCode::corrupt);
    EXPECT_THAT(loaded.error().text(), HasSubstr("not of this version"));
  }
}

// The other slot counts, as after a crash while one was written, and it is said.
TEST_F(OuterStoreTest, ADamagedSlotOfVotesIsNamed) {
  const auto path = std::string("outer/vote");
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    for (const std::uint64_t step : {3, 4})
      ASSERT_TRUE(store.write_vote(step, Vote{.promised = 5, .accepted = {}}));
  }
  const auto whole = *read_file(disk, path, 1 << 20);
  std::set<std::uint64_t> steps;
  for (const std::size_t slot : {0, 1})
    for (const std::size_t at : {3, 40}) {  // of the length; of what it is of
      auto spoilt = whole;
      spoilt[(slot << 18) + at] ^= std::byte{0xff};
      ASSERT_TRUE(replace_file(disk, path, spoilt));
      OuterStore store(disk, "outer");
      const auto loaded = store.load(kVoteFile);
      ASSERT_TRUE(loaded);
      EXPECT_THAT(loaded->damaged,
                  ElementsAre(damaged(fmt::format("slot {} of outer/vote is damaged", slot),
                                      "the other slot counts: a crash")));
      steps.insert(loaded->vote_step);
      EXPECT_THAT(OuterStore(disk, "outer").load(kVoteFile)->damaged, ElementsAre())
          << "written anew";
    }
  EXPECT_THAT(steps, ElementsAre(3, 4));
}

TEST_F(OuterStoreTest, RostersAreRememberedAcrossStarts) {
  const auto roster = [](int number) {
    return KnownRoster{.digest = security::blake2b(std::as_bytes(std::span(&number, 1))),
                       .sites = {1, 2, 7},
                       .voters = {1, 7}};
  };
  for (const int number : {1, 2, 2})
    ASSERT_TRUE(OuterStore(disk, "outer").note_roster(roster(number)));
  EXPECT_THAT(*OuterStore(disk, "outer").note_roster(roster(3)),
              ElementsAre(roster(1), roster(2), roster(3)));
  disk.crash();
  EXPECT_THAT(*OuterStore(disk, "outer").note_roster(roster(1)),
              ElementsAre(roster(2), roster(3), roster(1)));
  for (int number = 10; number < 20; ++number)
    ASSERT_TRUE(OuterStore(disk, "outer").note_roster(roster(number)));
  const auto kept = *OuterStore(disk, "outer").note_roster(roster(20));
  EXPECT_EQ(kept.size(), OuterStore::kRostersKept);
  EXPECT_EQ(kept.back(), roster(20));

  auto file = *disk.open("outer/rosters", Disk::Open::update);
  ASSERT_TRUE(file->write_at(3, Bytes(2, std::byte{0x55})));
  std::vector<OuterStore::Damaged> said;
  EXPECT_THAT(*OuterStore(disk, "outer").note_roster(roster(21), &said), ElementsAre(roster(21)));
  EXPECT_THAT(said, ElementsAre(damaged(std::string("outer/rosters is damaged"), "begun anew")));
  EXPECT_THAT(*OuterStore(disk, "outer").note_roster(roster(21), &said), ElementsAre(roster(21)));
  EXPECT_EQ(said.size(), 1U);
}

TEST_F(OuterStoreTest, ADamagedSlotIsNamed) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    ASSERT_TRUE(write_feedback(store, feedback_of(1, 1)));
  }
  const auto path =
      disk.exists("outer/feedback.0").value() ? "outer/feedback.0" : "outer/feedback.1";
  auto bytes = *read_file(disk, path, 1 << 20);
  bytes.back() ^= std::byte{1};
  ASSERT_TRUE(replace_file(disk, path, bytes));
  OuterStore store(disk, "outer");
  const auto loaded = store.load(kVoteFile);
  ASSERT_TRUE(loaded);
  EXPECT_TRUE(loaded->feedbacks.empty());
  EXPECT_THAT(loaded->damaged,
              ElementsAre(damaged(HasSubstr(path), "the other slot counts: a crash")));
}

// Others know a start by its number, and which of two attempts at a contribution is the newer one.
TEST_F(OuterStoreTest, NoStartHasTheNumberOfAnEarlierOne) {
  const auto path = std::string("outer/boot");
  const auto start = [&] {
    OuterStore store(disk, "outer");
    auto loaded = store.load(kVoteFile);
    EXPECT_TRUE(loaded) << loaded.error().text();
    return std::move(*loaded);
  };
  std::uint64_t last = start().boot;
  EXPECT_EQ(last, 2U);
  const auto next = [&](const testing::Matcher<std::vector<OuterStore::Damaged>>& said) {
    for (int starts = 0; starts < 3; ++starts) {
      const auto loaded = start();
      EXPECT_GT(loaded.boot, last);
      last = loaded.boot;
      if (starts == 0) {
        EXPECT_THAT(loaded.damaged, said);
      } else {
        EXPECT_THAT(loaded.damaged, ElementsAre());
      }
    }
  };
  const std::string then = "follows from how often votes were written";
  ASSERT_TRUE(disk.remove(path));
  next(ElementsAre(damaged(path + " is missing", then)));
  const auto whole = *read_file(disk, path, 64);
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto spoilt = *read_file(disk, path, 64);
    spoilt[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    ASSERT_TRUE(replace_file(disk, path, spoilt));
    next(ElementsAre(damaged(path + " is damaged", then)));
  }
  // As earlier versions wrote it.
  ASSERT_TRUE(replace_file(disk, path, ByteWriter().put(last).view()));
  next(ElementsAre());
  // The votes are lost, and then the number too.
  ASSERT_TRUE(disk.remove("outer/vote"));
  next(ElementsAre());
  ASSERT_TRUE(disk.remove(path));
  next(ElementsAre(damaged(path + " is missing", then)));
}

// A bit that turned in a vote is seen; what lies behind the two votes is nobody's.
TEST_F(OuterStoreTest, NoBitThatTurnsInTheVotesIsTakenForAVote) {
  const auto path = std::string("outer/vote");
  std::vector<Vote> votes(2);
  votes[0].promised = 5;
  votes[1].promised = 6;
  votes[1].accepted = Vote::Accepted{6, sample_record(2, 2)};
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    for (std::uint64_t step = 1; step <= 2; ++step)
      ASSERT_TRUE(store.write_vote(step, votes[step - 1]));
  }
  const auto whole = *read_file(disk, path, 1 << 20);
  for (const std::size_t slot : {std::size_t{0}, std::size_t{1} << 18}) {
    const auto length = ByteReader(std::span(whole).subspan(slot)).get<std::uint32_t>();
    const auto load_with = [&](const Bytes& bytes) {
      EXPECT_TRUE(replace_file(disk, path, bytes));
      auto loaded = OuterStore(disk, "outer").load(kVoteFile);
      EXPECT_TRUE(loaded) << loaded.error().text();
      return std::move(*loaded);
    };
    for (std::size_t bit = 0; bit < 8 * (4 + length); ++bit) {
      auto spoilt = whole;
      spoilt[slot + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      EXPECT_THAT(load_with(spoilt).damaged, testing::SizeIs(1)) << slot << " " << bit;
    }
    auto without_length = whole;
    for (std::size_t at = 0; at < 4; ++at) without_length[slot + at] = std::byte{0};
    EXPECT_THAT(load_with(without_length).damaged, testing::SizeIs(1));
    if (slot + 4 + length >= whole.size()) continue;
    auto behind = whole;
    for (const std::size_t at : {slot + 4 + length, (std::size_t{1} << 18) - 1})
      behind[at] ^= std::byte{0x10};
    const auto loaded = load_with(behind);
    EXPECT_THAT(loaded.damaged, ElementsAre());
    EXPECT_EQ(loaded.vote_step, 2U);
    EXPECT_EQ(loaded.vote.accepted, votes[1].accepted);
  }
}

// Nothing that starting again could mend: the operator hears of it at once.
TEST(OuterStoreFolders, InThePlaceOfAFileAreNamed) {
  const auto real = make_system_disk();
  const TemporaryFolder place;
  const auto outer = place / "outer";
  const auto layout = *ModelLayout::make({{"a", Shape{5}, 0}});
  const auto load = [&] {
    OuterStore store(*real, outer);
    auto loaded = store.load(7);
    return loaded ? store.note_roster({}) : Result<std::vector<KnownRoster>>(loaded.error());
  };
  {
    OuterStore store(*real, outer);
    ASSERT_TRUE(store.load(7));
    ASSERT_TRUE(store.begin_run(genesis_of(2), layout, Fingerprint{}));
    ASSERT_TRUE(store.append_record(sample_certificate(1)));
  }
  ASSERT_TRUE(load());
  for (const std::string name : {"boot", "boot.new", "vote", "run", "run.copy", "records",
                                 "state.0", "state.1", "feedback.0", "feedback.1", "rosters"}) {
    const auto path = outer + "/" + name;
    const bool there = *real->exists(path);
    if (there) std::filesystem::rename(path, path + ".aside");
    std::filesystem::create_directory(path);
    const auto loaded = load();
    ASSERT_FALSE(loaded) << name;
    EXPECT_EQ(loaded.error().code, ErrorCode::wrong_kind) << name;
    EXPECT_THAT(loaded.error().text(), AllOf(HasSubstr(path), HasSubstr("move it away"))) << name;
    std::filesystem::remove(path);
    if (there) std::filesystem::rename(path + ".aside", path);
    EXPECT_TRUE(load()) << name;
  }
}

// Torn at its end by a crash is one thing; records that come after damage are not given up unseen.
TEST_F(OuterStoreTest, RecordsBehindDamageAreKeptAside) {
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    for (std::uint64_t step = 1; step <= 8; ++step)
      ASSERT_TRUE(store.append_record(sample_certificate(step)));
  }
  const auto whole = *read_file(disk, "outer/records", 1 << 20);
  const auto load_with = [&](const Bytes& bytes, std::size_t records) {
    EXPECT_TRUE(replace_file(disk, "outer/records", bytes));
    OuterStore store(disk, "outer");
    const auto loaded = store.load(kVoteFile);
    EXPECT_TRUE(loaded);
    EXPECT_EQ(loaded->records.size(), records);
    return loaded->damaged;
  };
  auto torn = whole;
  torn.resize(whole.size() - 5);
  EXPECT_THAT(load_with(torn, 7), testing::IsEmpty());
  EXPECT_FALSE(*disk.exists("outer/records.damaged"));
  for (const std::size_t at : {whole.size() / 2, std::size_t{4} + 2 * whole.size() / 8}) {
    auto spoilt = whole;
    spoilt[at] ^= std::byte{0x80};
    EXPECT_THAT(load_with(spoilt, at / (whole.size() / 8)),
                ElementsAre(damaged(HasSubstr("outer/records.damaged"),
                                    "the records after that come from the peers")));
    EXPECT_EQ(*read_file(disk, "outer/records.damaged", 1 << 20), spoilt);
  }
  // No peer is asked while there is a state of a later record.
  {
    OuterStore store(disk, "outer");
    ASSERT_TRUE(store.load(kVoteFile));
    const OuterState state{.step = 7, .record = {}, .agreed = {1, 2, 3, 4, 5}, .momentum = {}};
    const auto file = store.begin_state(state, state_root(layout, state));
    ASSERT_TRUE(file);
    while (*(*file)->write_slice()) {
    }
  }
  auto spoilt = whole;
  spoilt[whole.size() / 2] ^= std::byte{0x80};
  EXPECT_THAT(load_with(spoilt, 4),
              ElementsAre(damaged(HasSubstr("outer/records.damaged"),
                                  "the state of step 7 is of a later one, and does not count "
                                  "without it")));
}

// Whole slices and a rest, of both halves.
TEST_F(OuterStoreTest, AStateIsWrittenInSlicesAndCountsWhenTheLastOneIs) {
  OuterState state;
  for (int i = 0; i < 5; ++i) {
    state.agreed.push_back(static_cast<float>(i));
    state.momentum.push_back(static_cast<float>(10 * i));
  }
  OuterStore store(disk, "outer", 12);
  ASSERT_TRUE(store.load(kVoteFile));
  for (state.step = 1; state.step <= 3; ++state.step) {
    const auto file = store.begin_state(state, state_root(layout, state));
    ASSERT_TRUE(file);
    std::vector<std::uint64_t> slices;
    for (bool more = true; more;) {
      const auto before = store.read_state(layout, state.step);
      EXPECT_FALSE(before) << "not whole yet";
      EXPECT_TRUE(state.step == 1 || store.read_state(layout, state.step - 1));
      slices.push_back((*file)->next_slice_bytes());
      const auto went_on = (*file)->write_slice();
      ASSERT_TRUE(went_on);
      more = *went_on;
    }
    EXPECT_THAT(slices, ElementsAre(12, 8, 12, 8));
    disk.crash();
    const auto read = store.read_state(layout, state.step);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->agreed, state.agreed);
    EXPECT_EQ(read->momentum, state.momentum);
  }
}

TEST_F(OuterStoreTest, AWrongStateSetAsideLeavesTheOneBefore) {
  OuterStore store(disk, "outer");
  ASSERT_TRUE(store.load(kVoteFile));
  const auto write = [&](std::uint64_t step, float value) {
    OuterState state;
    state.step = step;
    state.agreed.assign(5, value);
    const auto file = store.begin_state(state, state_root(layout, state));
    ASSERT_TRUE(file);
    ASSERT_TRUE((*file)->write_slice());
  };
  const auto newest = [&] {
    const auto loaded = OuterStore(disk, "outer").load(kVoteFile);
    return loaded && loaded->state ? std::pair(loaded->state->step, loaded->state->agreed[0])
                                   : std::pair(std::uint64_t{0}, 0.0F);
  };
  write(1, 10);
  write(2, 21);
  for (const float wrong : {21.0F, 22.0F}) {
    EXPECT_EQ(newest(), std::pair(std::uint64_t{2}, wrong));
    ASSERT_TRUE(store.set_newest_state_aside(2));
    disk.crash();
    EXPECT_EQ(newest(), std::pair(std::uint64_t{1}, 10.0F)) << wrong;
    write(2, wrong + 1);
  }
  EXPECT_EQ(newest(), std::pair(std::uint64_t{2}, 23.0F));
  EXPECT_EQ(store.read_diverged(layout, 2)->front(), 21) << "the first one is kept";
  EXPECT_EQ(store.read_diverged(layout, 1), std::nullopt);

  write(3, 31);
  ASSERT_TRUE(store.set_newest_state_aside(3));
  EXPECT_EQ(store.read_diverged(layout, 3)->front(), 31);
  EXPECT_EQ(store.read_diverged(layout, 2), std::nullopt) << "each is as large as a state";
}

}  // namespace
}  // namespace isthmus::inter
