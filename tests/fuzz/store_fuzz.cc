// Fuzz target: the files of a gateway's store, one of them changed, the others whole. The first
// byte chooses the file; the steps after it are its pieces, one after another. The bits of `what`:
// 1 followed by their checksum, 2 with their length in front, 4 filled up to a whole block of the
// disk, 8 at block `who`.
#include <algorithm>
#include <array>

#include "base/aligned_buffer.h"
#include "base/assert.h"
#include "base/copy_to.h"
#include "inter/sim/simulated_disk.h"
#include "security/roster_memory.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"
#include "tests/inter/sample_messages.h"
#include "tests/inter/sample_store.h"

namespace isthmus::inter {
namespace {

constexpr std::uint8_t kChecked = 1, kFramed = 2, kFilled = 4, kPlaced = 8;
constexpr std::array kFiles = {"boot",
                               "run",
                               "records",
                               "vote",
                               "state.0",
                               "feedback.0",
                               "contributions/00000003-4",
                               "rosters",
                               "recovery",
                               "roster.seen"};
constexpr VoteFileId kNewVoteFile = 78;

const std::map<std::string, Bytes>& whole_files() {
  static const auto files = sample_store_files();
  return files;
}
std::string path(const std::string& name) { return std::string(kSampleFolder) + "/" + name; }

Bytes file_of(std::span<const std::byte> script) {
  Bytes file;
  each_step(script, [&](const ScriptStep& step) {
    ByteWriter piece;
    const auto checksum = security::blake2b(step.bytes);
    const auto checked = (step.what & kChecked) != 0 ? checksum.bytes.size() : 0;
    if ((step.what & kFramed) != 0)
      piece.put(static_cast<std::uint32_t>(step.bytes.size() + checked));
    piece.raw(step.bytes).raw(std::span(checksum.bytes).first(checked));
    const auto at = (step.what & kPlaced) != 0 ? step.who * kDiskAlignment : file.size();
    file.resize(std::max(file.size(), at + piece.size()));
    copy_to(piece.view(), file.begin() + static_cast<std::ptrdiff_t>(at));
    if ((step.what & kFilled) != 0) file.resize(disk_aligned(file.size()));
  });
  return file;
}

void expect_clear(const Error& error) {
  ISTHMUS_ASSERT(error.code == ErrorCode::corrupt || error.code == ErrorCode::too_large);
  ISTHMUS_ASSERT(!error.text().empty());
}

void check_load(sim::SimulatedDisk& disk) {
  OuterStore store(disk, kSampleFolder);
  const auto first = store.load(kNewVoteFile);
  if (!first) return expect_clear(first.error());
  for (std::size_t i = 0; i < first->records.size(); ++i)
    ISTHMUS_ASSERT(first->records[i].record.step == i + 1);
  if (first->state) ISTHMUS_ASSERT(state_root(*first->layout, *first->state) == first->state_root);
  for (const auto& feedback : first->feedbacks)
    ISTHMUS_ASSERT(feedback.residual.size() == first->layout->elements());
  const auto known = OuterStore::read_records(disk, kSampleFolder);
  ISTHMUS_ASSERT(known && known->size() == first->records.size());
  ISTHMUS_ASSERT(OuterStore::newest_state(disk, kSampleFolder));
  // The next start finds the same.
  const auto second = OuterStore(disk, kSampleFolder).load(kNewVoteFile + 1);
  ISTHMUS_ASSERT(second && second->boot == first->boot + 1);
  ISTHMUS_ASSERT(second->records.size() == first->records.size());
  ISTHMUS_ASSERT(second->vote_file == first->vote_file && second->vote_step == first->vote_step);
  ISTHMUS_ASSERT(second->vote.promised == first->vote.promised);
  ISTHMUS_ASSERT(second->state.has_value() == first->state.has_value());
  ISTHMUS_ASSERT(second->feedbacks.size() == first->feedbacks.size());
}

void check_contribution(sim::SimulatedDisk& disk) {
  OuterStore store(disk, kSampleFolder);
  auto& contributions = store.contributions();
  const auto stored = contributions.read(kSampleContributionStep, kSampleContributionSite);
  if (!stored) return expect_clear(stored.error());
  // What is torn at its end can be gone on with.
  auto file = contributions.go_on_with(kSampleContributionStep, kSampleContributionSite,
                                       disk_aligned(stored->bytes));
  const inter::StoredChunk chunk(9, Bytes(20));
  ISTHMUS_ASSERT(file && (*file)->add(std::span(&chunk, 1)));
  const auto again = contributions.read(kSampleContributionStep, kSampleContributionSite);
  ISTHMUS_ASSERT(again && again->chunks.size() == stored->chunks.size() + 1);
  ISTHMUS_ASSERT(again->close.has_value() == stored->close.has_value());
}

// A file as the steps that make it, and its first byte.
Bytes seed(const std::string& name, ScriptWriter steps) {
  const auto at = std::ranges::find(kFiles, name) - kFiles.begin();
  return ByteWriter().put(static_cast<std::uint8_t>(at)).raw(steps.take()).take();
}
std::span<const std::byte> unchecked(std::span<const std::byte> bytes) {
  return bytes.first(bytes.size() - 32);
}
// A header with its checksum at the front of the file, data in the blocks that follow.
Bytes seed_of_slot(const std::string& name, std::size_t header_bytes) {
  const std::span<const std::byte> file = whole_files().at(name);
  ScriptWriter steps;
  steps.step(kChecked, 0, unchecked(file.first(header_bytes)));
  for (std::size_t at = kDiskAlignment; at < file.size(); at += kDiskAlignment)
    steps.step(
        kPlaced, static_cast<std::uint8_t>(at / kDiskAlignment),
        file.subspan(at, std::min<std::size_t>(4 * sample_layout().elements(), file.size() - at)));
  return seed(name, steps);
}

}  // namespace
}  // namespace isthmus::inter

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  using namespace isthmus::inter;
  if (size == 0) return 0;
  const std::string changed = kFiles[data[0] % kFiles.size()];
  const auto bytes = file_of(fuzz_input(data, size).subspan(1));
  sim::SimulatedDisk disk{Random(1)};
  const auto put = [&](const std::string& name, std::span<const std::byte> content) {
    ISTHMUS_ASSERT((*disk.open(path(name), Disk::Open::create))->write_at(0, content));
  };
  for (const auto& [name, content] : whole_files())
    if (name != changed) put(name, content);
  put(changed, bytes);
  if (changed.starts_with("contributions/")) {
    check_contribution(disk);
  } else if (changed == "rosters") {
    OuterStore store(disk, kSampleFolder);
    const auto noted = store.note_roster({});
    if (noted)
      ISTHMUS_ASSERT(!noted->empty() && noted->back() == KnownRoster{});
    else
      expect_clear(noted.error());
  } else if (changed == "recovery") {
    const auto known = OuterStore(disk, kSampleFolder).knows_recovery({});
    if (!known) expect_clear(known.error());
  } else if (changed == "roster.seen") {
    const auto seen = security::newest_seen_roster(disk, kSampleFolder);
    if (!seen) return expect_clear(seen.error()), 0;
    ISTHMUS_ASSERT(security::admit_roster(disk, kSampleFolder, **seen));
  } else {
    check_load(disk);
  }
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using namespace inter;
  const auto& files = whole_files();
  std::vector<Bytes> seeds;
  seeds.push_back(seed("boot", ScriptWriter().step(0, 0, files.at("boot"))));
  seeds.push_back(seed("run", ScriptWriter().step(kChecked, 0, unchecked(files.at("run")))));
  ScriptWriter records, votes, contribution;
  for (ByteReader in(files.at("records")); !in.rest().empty();)
    records.step(kChecked | kFramed, 0, unchecked(in.block(1 << 20)));
  seeds.push_back(seed("records", records));
  constexpr std::size_t kVoteSlotBytes = 1 << 18;
  for (std::size_t at = 0; at < files.at("vote").size(); at += kVoteSlotBytes) {
    ByteReader in(std::span(files.at("vote")).subspan(at));
    votes.step(kChecked | kFramed | kPlaced, static_cast<std::uint8_t>(at / kDiskAlignment),
               unchecked(in.block(kVoteSlotBytes)));
  }
  votes.step(kChecked | kFramed | kPlaced, 0, [] {
    ByteWriter vote;
    vote.put(kSampleVoteFile).put(std::uint64_t{9}).put(std::uint64_t{2}).put(std::uint64_t{2});
    vote.put(std::uint8_t{1}).put(std::uint64_t{1});
    sample_record(2, 2).encode(vote);
    return vote.take();
  }());
  seeds.push_back(seed("vote", votes));
  seeds.push_back(seed_of_slot("state.0", 8 + 4 + 4 + 8 + 32 + 32 + 8 + 32));
  seeds.push_back(seed_of_slot("feedback.0", 8 + 4 + 8 + 32 + 8 + 8 + 16 + 32));
  const std::span<const std::byte> chunks = files.at("contributions/00000003-4");
  for (std::size_t at = 0; at < chunks.size(); at += kDiskAlignment) {
    auto block = chunks.subspan(at, kDiskAlignment);
    while (!block.empty() && block.back() == std::byte{0}) block = block.first(block.size() - 1);
    contribution.step(kFilled, 0, block);
  }
  seeds.push_back(seed("contributions/00000003-4", contribution));
  sim::SimulatedDisk disk{Random(1)};
  OuterStore store(disk, kSampleFolder);
  ISTHMUS_ASSERT(store.note_roster({.digest = {}, .sites = {1, 2, 5}, .voters = {1, 2}}));
  ISTHMUS_ASSERT(security::admit_roster(disk, kSampleFolder, {.epoch = 3, .digest = {}}));
  for (const auto* name : {"rosters", "roster.seen"}) {
    const auto bytes = *read_file(disk, path(name), 4096);
    seeds.push_back(seed(name, ScriptWriter().step(kChecked, 0, unchecked(bytes))));
  }
  seeds.push_back(seed("recovery", ScriptWriter().step(0, 0, Bytes(32))));
  return seeds;
}

}  // namespace isthmus
