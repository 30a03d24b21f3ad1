// Every decoder of bytes that come from a peer or a disk: valid encodings come out as they went in,
// each truncation is refused, and bytes that are spoilt at random neither crash nor take memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <new>

#include "base/aligned_buffer.h"
#include "inter/outer_store.h"
#include "inter/sim/simulated_disk.h"
#include "inter/sim/simulated_keys.h"
#include "tests/inter/link_world.h"
#include "tests/inter/sample_messages.h"
#include "tests/inter/sample_store.h"

namespace {

// The largest allocation of this thread since it was set to zero. Always zero under a sanitizer,
// which has its own operator new.
thread_local std::size_t largest_allocation = 0;

}  // namespace

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(std::size_t size) {
  largest_allocation = std::max(largest_allocation, size);
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

namespace isthmus::inter {
namespace {

// On a heap block of exactly this size, so that a sanitizer sees each byte read beyond it.
std::unique_ptr<std::byte[]> exactly(std::span<const std::byte> bytes) {
  auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return copy;
}

// Flips, drops, repeats or inserts a few bytes; now and then a length becomes huge.
Bytes spoilt(Bytes bytes, Random& random) {
  const auto changes = 1 + random.below(4);
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    const auto at = static_cast<std::ptrdiff_t>(random.below(bytes.size()));
    switch (random.below(6)) {
      case 0:
        bytes.erase(bytes.begin() + at);
        break;
      case 1:
        bytes.insert(bytes.begin() + at, static_cast<std::byte>(random.below(256)));
        break;
      case 2:
        for (auto j = at; j < std::min<std::ptrdiff_t>(at + 4, std::ssize(bytes)); ++j)
          bytes[static_cast<std::size_t>(j)] = std::byte{0xFF};
        break;
      default:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1 + random.below(255));
    }
  }
  return bytes;
}

class Decoder : public testing::TestWithParam<SampleMessage> {
 protected:
  // What an input of this size may take: decoded structures are larger than their encodings.
  static std::size_t allocation_max(std::size_t input) { return 64 * input + (1 << 16); }
  std::optional<Bytes> decode(std::span<const std::byte> bytes) {
    const auto copy = exactly(bytes);
    largest_allocation = 0;
    auto again = GetParam().again({copy.get(), bytes.size()});
    // The leaves of a model are listed: their number is bounded, not by the input's size.
    if (GetParam().name != "layout") {
      EXPECT_LE(largest_allocation, allocation_max(bytes.size()));
    }
    EXPECT_LE(largest_allocation, std::size_t{256} << 20);
    return again;
  }
};

TEST_P(Decoder, UnderstandsWhatIsValid) { EXPECT_EQ(decode(GetParam().bytes), GetParam().bytes); }

TEST_P(Decoder, RefusesEachTruncation) {
  const std::span<const std::byte> bytes = GetParam().bytes;
  for (std::size_t size = 0; size < std::min(bytes.size(), GetParam().fixed_bytes); ++size)
    EXPECT_EQ(decode(bytes.first(size)), std::nullopt) << size;
}

TEST_P(Decoder, RefusesWhatFollowsTheEnd) {
  auto longer = GetParam().bytes;
  longer.push_back(std::byte{0});
  if (GetParam().fixed_bytes == SIZE_MAX) {
    EXPECT_EQ(decode(longer), std::nullopt);
  } else {
    EXPECT_EQ(decode(longer), longer) << "a body of any length";
  }
}

TEST_P(Decoder, SurvivesSpoiltAndRandomBytes) {
  Random random(Random(1).split(GetParam().name));
  for (int i = 0; i < 3000; ++i) {
    Bytes bytes;
    if (i % 10 == 0) {
      bytes.resize(random.below(400));
      for (auto& byte : bytes) byte = static_cast<std::byte>(random.below(256));
    } else {
      bytes = spoilt(GetParam().bytes, random);
    }
    const auto again = decode(bytes);
    if (!again) continue;
    if (GetParam().normalises)
      EXPECT_EQ(decode(*again), again);
    else
      EXPECT_EQ(*again, bytes) << "two encodings of one thing, seed " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(OfPeers, Decoder, testing::ValuesIn(sample_messages()),
                         [](const auto& chosen) {
                           std::string name = chosen.param.name;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

// --- Limits

TEST(Messages, OfTheLargestFederationFitTheWire) {
  const auto record = sample_record(7, kSitesMax);
  const Promise promise{.ballot = 3, .accepted = Vote::Accepted{2, record}, .held = record.parts};
  Certificate certificate{.record = record, .ballot = 1, .accepts = {}};
  for (const auto site : record.view.voters) certificate.accepts.push_back({site, {}});
  Status status;
  status.sees = status.holds = status.sees_contribute = status.sees_complete = record.view.members;
  for (const auto site : record.view.members) status.wishes.push_back({.site = site});
  const sim::SimulatedSigner signer(1);
  for (const auto& message :
       {sign(signer, 1, {}, promise).encode(), sign(signer, 1, {}, Propose{3, record}).encode(),
        encode(Records{{certificate}}), encode(status)})
    EXPECT_LE(message.size() + kDataHeaderBytes, kControlMessageBytesMax);
}

TEST(Messages, OfMoreSitesThanThereCanBeAreRefused) {
  const auto body = encode(StepId{}, Propose{3, sample_record(7, kSitesMax + 1)});
  EXPECT_FALSE(decode_ballot(MessageType::propose, body));
}

TEST(Messages, OfBallotsAfterWhichNoHigherOneComesAreRefused) {
  const auto taken = [](const Ballot& ballot) {
    return decode_ballot(type_of(ballot), encode(StepId{}, ballot)).has_value();
  };
  const auto record = sample_record(7, 3);
  for (const auto ballot : {kBallotMax, kBallotMax + 1, UINT64_MAX}) {
    const bool fine = ballot == kBallotMax;
    EXPECT_EQ(taken(Prepare{ballot}), fine);
    EXPECT_EQ(taken(Promise{.ballot = ballot, .accepted = {}, .held = {}}), fine);
    EXPECT_EQ(taken(Promise{.ballot = 1, .accepted = Vote::Accepted{ballot, record}, .held = {}}),
              fine);
    EXPECT_EQ(taken(Propose{ballot, record}), fine);
    EXPECT_EQ(taken(Accept{ballot, record}), fine);
  }
}

// --- A link

// A peer that says anything, on any connection, in any order. Nothing crashes, memory is bounded.
TEST(Link, SurvivesAPeerThatSaysAnything) {
  const auto samples = sample_messages();
  std::vector<Bytes> frames;
  for (const auto& sample : samples)
    for (const auto* name : {"hello", "refuse", "data", "ack", "chunk", "bind"})
      if (sample.name == name) frames.push_back(sample.bytes);
  ASSERT_EQ(frames.size(), 6U);
  LinkOptions options;
  options.beyond_gap_bytes_max = 1 << 16;
  std::uint64_t sessions = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    Random random(seed);
    ScriptedPeer peer(options);
    peer.owner.settle_at_once = seed % 2 == 0;
    peer.begin_session();
    peer.link.offer(5, 0, 20, std::make_shared<NumberedChunks>(50), false);
    for (int i = 0; i < 600; ++i) {
      auto frame = frames[random.below(frames.size())];
      // Most of them for the session that stands, so that they get past the front door.
      if (frame[0] > std::byte{2} && random.chance(0.8)) {
        const auto session = peer.link.session();
        std::memcpy(frame.data() + 1, &session, sizeof session);
      }
      if (random.chance(0.8)) {
        if (frame.size() > 9 && random.chance(0.7)) {
          Bytes rest(frame.begin() + 9, frame.end());
          rest = spoilt(std::move(rest), random);
          frame.resize(9);
          frame.insert(frame.end(), rest.begin(), rest.end());
        } else {
          frame = spoilt(std::move(frame), random);
        }
      }
      const std::shared_ptr<const std::byte[]> copy = exactly(frame);
      const ConnectionId connection = 1 + random.below(6);
      const auto lane = random.chance(0.7) ? Lane::control : Lane::bulk;
      switch (random.below(12)) {
        case 0:
          peer.link.wire_up(lane, connection);
          break;
        case 1:
          peer.link.wire_down(lane, connection);
          break;
        case 2:
          peer.run_for(static_cast<Nanoseconds>(random.below(2'000'000'000)));
          if (!peer.link.up()) peer.begin_session();
          break;
        case 3:
          peer.link.send(numbered(1));
          break;
        default:
          peer.link.wire_message(lane, connection, {copy, {copy.get(), frame.size()}});
      }
      ASSERT_LE(peer.link.memory_bytes(), options.beyond_gap_bytes_max + (1 << 16)) << seed;
      ASSERT_LE(peer.owner.unsettled.size(), 2 * options.window_chunks * (1 + peer.owner.sessions));
    }
    EXPECT_GE(peer.link.round_trip(), 0);
    EXPECT_LE(peer.link.round_trip(), RoundTrip::kSampleMax);
    sessions += peer.link.counters().sessions;
  }
  EXPECT_GT(sessions, 30U);
}

// --- Files

constexpr VoteFileId kNewVoteFile = 78;

class StoreFiles : public testing::Test {
 protected:
  using Files = std::map<std::string, Bytes>;

  static std::string path(const std::string& name) {
    return std::string(kSampleFolder) + "/" + name;
  }

  struct Read {
    Result<OuterStore::Loaded> loaded;
    Result<StoredContribution> contribution;
  };
  // What a start finds with one file changed.
  Read read_with(const std::string& changed, const Bytes& bytes) {
    sim::SimulatedDisk disk{Random(1)};
    for (const auto& [name, content] : files_) {
      auto file = *disk.open(path(name), Disk::Open::create);
      EXPECT_TRUE(file->write_at(0, name == changed ? bytes : content));
    }
    OuterStore store(disk, kSampleFolder);
    largest_allocation = 0;
    auto loaded = store.load(kNewVoteFile);
    auto contribution =
        store.contributions().read(kSampleContributionStep, kSampleContributionSite);
    EXPECT_LE(largest_allocation, std::size_t{1} << 21) << changed;
    return {std::move(loaded), std::move(contribution)};
  }
  // Whatever is damaged: what is loaded is what was written once, or is missing.
  void check(const std::string& changed, const Bytes& bytes) {
    const auto read = read_with(changed, bytes);
    if (!read.loaded) {
      EXPECT_EQ(read.loaded.error().code, ErrorCode::corrupt) << read.loaded.error().text();
      EXPECT_EQ(changed, "run");
      return;
    }
    const auto& loaded = *read.loaded;
    ASSERT_TRUE(loaded.genesis && loaded.layout);
    // The second start, after as many votes at most as were written.
    EXPECT_TRUE(loaded.boot == 2 || (changed == "boot" && loaded.boot > 2 && loaded.boot < 9))
        << changed << " " << loaded.boot;
    auto genesis = sample_record(0, 2);
    genesis.fingerprint = loaded.fingerprint.digest();
    EXPECT_EQ(loaded.genesis->record, genesis);
    EXPECT_EQ(loaded.layout->digest(), sample_layout().digest());
    for (std::size_t i = 0; i < loaded.records.size(); ++i)
      EXPECT_EQ(loaded.records[i].record, sample_record(i + 1, 2)) << changed;
    if (changed != "records") {
      EXPECT_EQ(loaded.records.size(), 2U);
    }
    EXPECT_EQ(loaded.vote.promised, loaded.vote_step);
    EXPECT_LE(loaded.vote_step, 2U);
    EXPECT_EQ(loaded.vote_file, loaded.vote_step == 0 ? kNewVoteFile : kSampleVoteFile)
        << "no vote that can be read is no empty vote";
    ASSERT_TRUE(loaded.state) << changed;
    EXPECT_EQ(loaded.state->agreed, sample_state(loaded.state->step).agreed) << changed;
    EXPECT_EQ(loaded.state->momentum, sample_state(loaded.state->step).momentum) << changed;
    for (const auto& feedback : loaded.feedbacks) EXPECT_EQ(feedback.residual[0], 0.25f);
  }

  const Files files_ = sample_store_files();
};

TEST_F(StoreFiles, AreReadAsTheyWereWritten) {
  const auto read = read_with("", {});
  ASSERT_TRUE(read.loaded) << read.loaded.error().text();
  EXPECT_EQ(read.loaded->boot, 2U);
  EXPECT_EQ(read.loaded->records.size(), 2U);
  EXPECT_EQ(read.loaded->vote_step, 2U);
  EXPECT_EQ(read.loaded->vote_file, kSampleVoteFile);
  EXPECT_EQ(read.loaded->state->step, 2U);
  ASSERT_EQ(read.loaded->feedbacks.size(), 2U);
  EXPECT_EQ(read.loaded->feedbacks[0].step, 2U);
  EXPECT_EQ(read.loaded->feedbacks[0].tokens, 20U);
  ASSERT_TRUE(read.contribution);
  EXPECT_EQ(read.contribution->chunks.size(), 3U);
  EXPECT_TRUE(read.contribution->close);
}

TEST_F(StoreFiles, TornOnesAreKnownAsSuch) {
  for (const auto& [name, content] : files_) {
    // Every size of small files; of large ones the interesting ends and a sample between.
    const auto step = std::max<std::size_t>(1, content.size() / 400);
    for (std::size_t size = 0; size < content.size();
         size += size < 200 || content.size() - size <= 200 ? 1 : step) {
      const Bytes torn(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size));
      check(name, torn);
      if (HasFatalFailure()) FAIL() << name << " of " << size << " bytes";
      if (name.starts_with("contributions/")) {
        const auto read = read_with(name, torn);
        if (read.contribution) {
          // The close is the last block, filled up with zeros: index, length, bytes.
          const auto last = std::span<const std::byte>(content).last(kDiskAlignment);
          ByteReader close(last);
          close.get<std::uint32_t>();
          const auto end = content.size() - kDiskAlignment + 8 + close.get<std::uint32_t>();
          EXPECT_EQ(read.contribution->close.has_value(), size >= end) << size;
        } else {
          EXPECT_EQ(read.contribution.error().code, ErrorCode::corrupt);
        }
      }
    }
  }
}

// Four times as many elements as a 64-bit number counts are as many bytes as a small file has.
TEST_F(StoreFiles, AFeedbackIsAsLongAsItSays) {
  ByteWriter header;
  header.put(std::uint64_t{0x0064656566736d69}).put(std::uint32_t{2}).put(std::uint64_t{1});
  header.raw(Bytes(32)).put(std::uint64_t{0}).put((std::uint64_t{1} << 62) + 1).raw(Bytes(16));
  auto file = header.raw(security::blake2b(header.view()).bytes).take();
  file.resize(kDiskAlignment + sizeof(float));
  const auto read = read_with("feedback.0", file);
  ASSERT_TRUE(read.loaded) << read.loaded.error().text();
  EXPECT_EQ(read.loaded->feedbacks.size(), 1U);
}

TEST_F(StoreFiles, SpoiltOnesAreKnownAsSuch) {
  Random random(3);
  for (const auto& [name, content] : files_) {
    for (int i = 0; i < 300; ++i) {
      auto bytes = content;
      // One flipped bit at least, where there is something: slots and headers have gaps.
      for (auto flips = 1 + random.below(3); flips > 0; --flips) {
        std::size_t at = 0;
        do {
          at = random.below(bytes.size());
        } while (content[at] == std::byte{0} && random.chance(0.9));
        bytes[at] ^= static_cast<std::byte>(1 + random.below(255));
      }
      check(name, i % 2 == 0 ? bytes : spoilt(bytes, random));
      if (HasFatalFailure()) FAIL() << name << " round " << i;
    }
  }
}

}  // namespace
}  // namespace isthmus::inter
