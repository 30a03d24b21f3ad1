#include "inter/outer_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/assert.h"
#include "inter/checksum.h"
#include "inter/encoding.h"

namespace isthmus::inter {
namespace {

// The longest record fits. What lies behind a vote is never read.
constexpr std::uint64_t kVoteSlotBytes = 1 << 18;
constexpr std::uint64_t kVoteSequenceMax = std::uint64_t{1} << 47;  // no site votes as often
constexpr std::uint64_t kSmallFileBytesMax = 1 << 26;

constexpr const char* kTorn = "a crash while it was written leaves it so, and nothing else should";

// A slot that is not there, or is damaged, is none.
template <class Slot>
Result<bool> counts(const Result<Slot>& read, std::vector<OuterStore::Damaged>& damaged,
                    std::string then) {
  if (read) return true;
  if (!is_lost(read.error())) return read.error();
  if (read.error().code == ErrorCode::corrupt)
    damaged.push_back({read.error().text(), std::move(then)});
  return false;
}

}  // namespace

OuterStore::OuterStore(Disk& disk, std::string folder, std::uint64_t slice_bytes)
    : disk_(disk),
      folder_(std::move(folder)),
      contributions_(disk, path("contributions")),
      slice_bytes_(slice_bytes) {}

Result<OuterStore::Loaded> OuterStore::load(VoteFileId new_vote_file) {
  Loaded loaded;
  on_disk_ = OnDisk();
  ISTHMUS_CHECK(disk_.make_folders(contributions_.folder()));
  ISTHMUS_CHECK(disk_.sync_folder(folder_of(folder_)));  // it may have been made, and no more

  ISTHMUS_TRY(const bool has_vote, disk_.exists(path("vote")));
  ISTHMUS_TRY(on_disk_.vote_file,
              disk_.open(path("vote"), has_vote ? Disk::Open::update : Disk::Open::create));
  ISTHMUS_CHECK(load_vote(loaded));
  std::vector<Damaged> counts_damaged;  // which says nothing of whether there is a run
  ISTHMUS_TRY(loaded.boot, count_boot(counts_damaged));
  if (on_disk_.vote_file_id == kNoVoteFile) on_disk_.vote_file_id = new_vote_file;
  ISTHMUS_CHECK(write_vote(loaded.vote_step, loaded.vote));
  ISTHMUS_CHECK(disk_.sync_folder(folder_));
  loaded.vote_file = on_disk_.vote_file_id;
  ISTHMUS_CHECK(load_genesis(loaded));
  if (loaded.genesis) ISTHMUS_CHECK(load_run(loaded));
  std::ranges::move(counts_damaged, std::back_inserter(loaded.damaged));
  return loaded;
}

Result<std::uint64_t> OuterStore::remove_kept_for_others(SiteId self) {
  ISTHMUS_TRY(const auto records, read_records(disk_, folder_));
  ISTHMUS_TRY(const auto state, newest_state(disk_, folder_));
  if (!state || records.size() < 2) return 0;
  // Whoever voted for the newest record had saved all states but that of the one before it.
  const auto saved = std::min<std::uint64_t>(records.size() - 2, state->step);
  std::vector<std::uint64_t> of_feedback;
  for (const int slot : {0, 1}) {
    const auto feedback = read_feedback(slot);
    if (feedback)
      of_feedback.push_back(feedback->step);
    else if (!is_lost(feedback.error()))
      return feedback.error();
  }
  ISTHMUS_TRY(const auto removed, contributions_.remove_below(saved, of_feedback, self));
  return removed == 0 ? 0 : saved;
}

// The number of this start, written before anybody is told. Each start writes its vote at least
// once, so where the count is lost no start had a higher number than there were votes written.
Result<std::uint64_t> OuterStore::count_boot(std::vector<Damaged>& damaged) {
  const auto count = [this]() -> Result<std::uint64_t> {
    ISTHMUS_TRY(const auto bytes, read_file(disk_, path("boot"), 64));
    const bool of_earlier_version = bytes.size() == sizeof(std::uint64_t);
    const auto checked = bytes.size() == sizeof(std::uint64_t) + 32 && checks(bytes);
    const auto boot = ByteReader(bytes).get<std::uint64_t>();
    if (!(of_earlier_version || checked) || boot == UINT64_MAX)
      return Error{ErrorCode::corrupt, path("boot") + " is damaged"};
    return boot;
  }();
  auto boot = count.value_or(on_disk_.vote_sequence);
  if (!count && count.error().code != ErrorCode::too_large && !is_lost(count.error()))
    return count.error();
  if (!count && on_disk_.vote_sequence > 0)
    damaged.push_back({count.error().code == ErrorCode::not_found ? path("boot") + " is missing"
                                                                  : path("boot") + " is damaged",
                       "this start's number follows from how often votes were written"});
  ++boot;
  ByteWriter out;
  ISTHMUS_CHECK(replace_file(disk_, path("boot"), with_checksum(out.put(boot))));
  // The next slot to be written stays the one that is not the newest.
  auto& sequence = on_disk_.vote_sequence;
  if (sequence < boot && boot < kVoteSequenceMax) sequence += (boot - sequence + 1) / 2 * 2;
  return boot;
}

namespace {

// All of a run hangs by this file, which is written once: there are two of it.
constexpr const char* kRunFiles[] = {"run", "run.copy"};

struct RunFile {
  Certificate genesis;
  ModelLayout layout;
  Fingerprint fingerprint;
};

Result<std::pair<RunFile, Bytes>> read_run_file(const Disk& disk, const std::string& path) {
  ISTHMUS_TRY(auto bytes, read_file(disk, path, kSmallFileBytesMax));
  const Error damaged{ErrorCode::corrupt, path + " is damaged"};
  if (!checks(bytes)) return damaged;
  ByteReader in(bytes);
  auto genesis = Certificate::decode(in);
  if (!genesis) return damaged;
  auto layout = ModelLayout::decode(in);
  if (!layout) return damaged;
  auto fingerprint = Fingerprint::decode(in);
  if (!in.ok() || fingerprint.digest() != genesis->record.fingerprint) return damaged;
  return std::pair(RunFile{std::move(*genesis), std::move(*layout), std::move(fingerprint)},
                   std::move(bytes));
}

}  // namespace

// Of which one is lost, it is made anew from the other. They are written from the same bytes: who
// has put another one here knows which is right.
Result<void> OuterStore::load_genesis(Loaded& loaded) {
  std::optional<std::pair<RunFile, Bytes>> whole;
  std::vector<std::string> lost;
  std::vector<Damaged> damaged;  // of these two: a vote that a crash tore may be older than any run
  for (const auto* name : kRunFiles) {
    auto read = read_run_file(disk_, path(name));
    ISTHMUS_TRY(const bool one_is_whole,
                counts(read, damaged,
                       "it is made anew from the other one of run and run.copy; no crash leaves it "
                       "so: look after this disk"));
    if (!one_is_whole)
      lost.push_back(path(name));
    else if (!whole)
      whole = std::move(*read);
    else if (whole->first.genesis.record != read->first.genesis.record)
      return Error{ErrorCode::corrupt,
                   fmt::format("{} is of run {}, and {} of run {}: move away the one that is not "
                               "of this site's run, which isthmus status shows at the other sites, "
                               "and start again",
                               path(kRunFiles[0]), whole->first.genesis.record.hash().hex(),
                               path(name), read->first.genesis.record.hash().hex())};
  }
  if (!whole && damaged.empty() && loaded.vote_step == 0) return {};  // it has no run yet
  if (!whole)
    return Error{
        ErrorCode::corrupt,
        fmt::format(
            "{} is {}, and its copy is no help: move the folder {} away; the site then fetches the "
            "run from its peers, and votes again once the other voters have readmitted it. "
            "Where they are no majority without it, as one of two, also name the state to "
            "go on from (isthmus roster recover)",
            path(kRunFiles[0]), damaged.empty() ? "missing" : "damaged or missing", folder_)};
  for (const auto& name : lost) ISTHMUS_CHECK(replace_file(disk_, name, whole->second));
  std::ranges::move(damaged, std::back_inserter(loaded.damaged));
  auto& run = whole->first;
  loaded.genesis = std::move(run.genesis);
  loaded.layout = std::move(run.layout);
  loaded.fingerprint = std::move(run.fingerprint);
  return {};
}

Result<void> OuterStore::load_run(Loaded& loaded) {
  ISTHMUS_TRY(const bool records_damaged, load_records(loaded.records));
  for (int slot = 0; slot < 2; ++slot) {
    auto read = read_state_file(*loaded.layout, slot_path(slot));
    ISTHMUS_TRY(const bool whole,
                counts(read, loaded.damaged,
                       fmt::format("the other slot counts, or what the peers have: {}", kTorn)));
    if (!whole || (loaded.state && loaded.state->step > read->first.step)) continue;
    loaded.state = std::move(read->first);
    loaded.state_root = read->second;
    on_disk_.newest_state_slot = slot;
  }
  if (loaded.state) ISTHMUS_CHECK(write_state_header_again(on_disk_.newest_state_slot));
  if (records_damaged) {
    const auto count = loaded.records.size();
    const bool missed = loaded.state && loaded.state->step > count;
    loaded.damaged.push_back(
        {fmt::format("{} is damaged after record {}: all of it is kept as {}", path("records"),
                     count, path("records.damaged")),
         fmt::format("{}; a crash tears the last one alone: look after this disk",
                     missed ? fmt::format("the state of step {} is of a later one, and does not "
                                          "count without it",
                                          loaded.state->step)
                            : "the records after that come from the peers")});
  }
  for (int slot = 0; slot < 2; ++slot) {
    auto read = read_feedback(slot);
    const auto damaged = loaded.damaged.size();
    ISTHMUS_TRY(const bool whole,
                counts(read, loaded.damaged, fmt::format("the other slot counts: {}", kTorn)));
    loaded.feedback_damaged = loaded.feedback_damaged || loaded.damaged.size() > damaged;
    loaded.feedback_missing |= !read && read.error().code == ErrorCode::not_found;
    if (!whole || read->residual.size() != loaded.layout->elements()) continue;
    const bool newest = loaded.feedbacks.empty() || loaded.feedbacks.front().step < read->step;
    on_disk_.feedback_names[slot] = FeedbackName(read->step, read->root);
    loaded.feedbacks.insert(newest ? loaded.feedbacks.begin() : loaded.feedbacks.end(),
                            std::move(*read));
  }
  return {};
}

Result<void> OuterStore::begin_run(const Certificate& genesis, const ModelLayout& layout,
                                   const Fingerprint& fingerprint) {
  ByteWriter out;
  genesis.encode(out);
  layout.encode(out);
  fingerprint.encode(out);
  const auto bytes = with_checksum(out);
  for (const auto* name : kRunFiles) ISTHMUS_CHECK(replace_file(disk_, path(name), bytes));
  return {};
}

// --- Records

namespace {

struct WholeRecords {
  bool damaged = false;              // more follows than a record that was torn
  std::vector<Certificate> records;  // 1, 2, …
  std::vector<std::uint64_t> ends;   // in the file
};

Result<WholeRecords> whole_records(const File& file) {
  WholeRecords whole;
  ISTHMUS_TRY(const auto size, file.size());
  for (std::uint64_t at = 0; at + 4 <= size;) {
    std::byte length_bytes[4];
    ISTHMUS_CHECK(file.read_at(at, length_bytes));
    const auto length = ByteReader(length_bytes).get<std::uint32_t>();
    // Unless it turns out to be whole. A record is about as long as those before it.
    whole.damaged = at > 0 && size - at > 4 * at / whole.records.size();
    if (length > kSmallFileBytesMax || at + 4 + length > size) break;
    whole.damaged |= length > 0 && at + 4 + length < size;
    Bytes bytes(length);
    ISTHMUS_CHECK(file.read_at(at + 4, bytes));
    if (!checks(bytes)) break;
    ByteReader in(std::span<const std::byte>(bytes).first(length - 32));
    auto certificate = Certificate::decode(in);
    if (!certificate || certificate->record.step != whole.records.size() + 1) break;
    whole.damaged = false;
    whole.records.push_back(std::move(*certificate));
    at += 4 + length;
    whole.ends.push_back(at);
  }
  return whole;
}

}  // namespace

Result<bool> OuterStore::load_records(std::vector<Certificate>& records) {
  ISTHMUS_TRY(const bool there, disk_.exists(path("records")));
  if (!there) return false;
  ISTHMUS_TRY(on_disk_.record_file, disk_.open(path("records"), Disk::Open::update));
  ISTHMUS_TRY(auto whole, whole_records(*on_disk_.record_file));
  on_disk_.record_ends = std::move(whole.ends);
  on_disk_.record_bytes = on_disk_.record_ends.empty() ? 0 : on_disk_.record_ends.back();
  // What follows was torn by a crash; peers have it, and more. A crash tears the last record only:
  // of anything else the operator can still make something.
  ISTHMUS_TRY(const auto size, on_disk_.record_file->size());
  if (whole.damaged) {
    ISTHMUS_TRY(const auto all, read_file(disk_, path("records"), size));
    ISTHMUS_CHECK(replace_file(disk_, path("records.damaged"), all));
  }
  if (on_disk_.record_bytes < size)
    ISTHMUS_CHECK(on_disk_.record_file->truncate(on_disk_.record_bytes));
  // Each was durable before the next one was written.
  if (const auto count = on_disk_.record_ends.size(); count > 0) {
    const auto begin = count > 1 ? on_disk_.record_ends[count - 2] : 0;
    Bytes last(on_disk_.record_bytes - begin);
    ISTHMUS_CHECK(on_disk_.record_file->read_at(begin, last));
    ISTHMUS_CHECK(on_disk_.record_file->write_at(begin, last));
    ISTHMUS_CHECK(on_disk_.record_file->sync());
  }
  records = std::move(whole.records);
  return whole.damaged;
}

Result<std::vector<Certificate>> OuterStore::read_records(Disk& disk, const std::string& folder) {
  const auto path = folder + "/records";
  ISTHMUS_TRY(const bool there, disk.exists(path));
  if (!there) return std::vector<Certificate>();
  ISTHMUS_TRY(const auto file, disk.open(path, Disk::Open::read));
  ISTHMUS_TRY(auto whole, whole_records(*file));
  return std::move(whole.records);
}

Result<void> OuterStore::append_record(const Certificate& certificate) {
  if (!on_disk_.record_file) {
    ISTHMUS_TRY(auto file, disk_.open(path("records"), Disk::Open::create));
    // Where this fails the next attempt begins here again.
    ISTHMUS_CHECK(disk_.sync_folder(folder_));
    on_disk_.record_file = std::move(file);
    on_disk_.record_bytes = 0;
  }
  ByteWriter out;
  certificate.encode(out);
  const auto bytes = with_checksum(out);
  ByteWriter framed;
  framed.block(bytes);
  ISTHMUS_CHECK(on_disk_.record_file->write_at(on_disk_.record_bytes, framed.view()));
  ISTHMUS_CHECK(on_disk_.record_file->sync());
  on_disk_.record_bytes += framed.size();
  on_disk_.record_ends.push_back(on_disk_.record_bytes);
  return {};
}

Result<void> OuterStore::truncate_records(std::uint64_t step) {
  ISTHMUS_ASSERT(step <= on_disk_.record_ends.size());
  on_disk_.record_ends.resize(step);
  on_disk_.record_bytes = step == 0 ? 0 : on_disk_.record_ends.back();
  ISTHMUS_CHECK(on_disk_.record_file->truncate(on_disk_.record_bytes));
  return on_disk_.record_file->sync();
}

// --- Vote

// Two slots, written in turn: a torn write leaves the one before it, whose successor nobody has
// heard of.
Result<void> OuterStore::write_vote(std::uint64_t step, const Vote& vote) {
  ISTHMUS_ASSERT(on_disk_.vote_file != nullptr);
  ByteWriter out;
  out.put(on_disk_.vote_file_id)
      .put(on_disk_.vote_sequence + 1)
      .put(step)
      .put(vote.promised)
      .put(static_cast<std::uint8_t>(vote.accepted.has_value()));
  if (vote.accepted) {
    out.put(vote.accepted->ballot);
    vote.accepted->record.encode(out);
  }
  const auto bytes = with_checksum(out);
  ISTHMUS_ASSERT(bytes.size() + 4 <= kVoteSlotBytes);
  ISTHMUS_CHECK(on_disk_.vote_file->write_at(((on_disk_.vote_sequence + 1) % 2) * kVoteSlotBytes,
                                             ByteWriter().block(bytes).view()));
  ISTHMUS_CHECK(on_disk_.vote_file->sync());
  ++on_disk_.vote_sequence;
  return {};
}

Result<void> OuterStore::load_vote(Loaded& loaded) {
  // A vote that this process cannot read is not one that was never cast.
  const Error not_ours{ErrorCode::corrupt,
                       path("vote") +
                           " is whole, but not of this version of isthmus: start that version; or "
                           "move the file away, and this site votes again once a record names "
                           "its new one"};
  ISTHMUS_TRY(const auto size, on_disk_.vote_file->size());
  Bytes newest;
  std::uint64_t newest_at = 0;
  for (std::uint64_t slot = 0; slot < 2; ++slot) {
    const auto at = slot * kVoteSlotBytes;
    if (size < at + 4) continue;
    std::byte length_bytes[4];
    ISTHMUS_CHECK(on_disk_.vote_file->read_at(at, length_bytes));
    const auto length = ByteReader(length_bytes).get<std::uint32_t>();
    if (length == 0) {  // never written, or another length was: no file has the number 0
      Bytes number(size < at + 12 ? 0 : 8);
      ISTHMUS_CHECK(on_disk_.vote_file->read_at(at + 4, number));
      if (number == Bytes(number.size())) continue;
    }
    Bytes bytes(length < 32 || length > kVoteSlotBytes - 4 || size < at + 4 + length ? 0 : length);
    ISTHMUS_CHECK(on_disk_.vote_file->read_at(at + 4, bytes));
    if (bytes.empty() || !checks(bytes)) {
      loaded.damaged.push_back({fmt::format("slot {} of {} is damaged", slot, path("vote")),
                                fmt::format("the other slot counts: {}", kTorn)});
      continue;
    }
    ByteReader in(std::span<const std::byte>(bytes).first(length - 32));
    const auto file = in.get<VoteFileId>();
    const auto sequence = in.get<std::uint64_t>();
    const auto step = in.get<std::uint64_t>();
    Vote vote;
    vote.promised = in.get<std::uint64_t>();
    if (in.get<std::uint8_t>() != 0) {
      const auto ballot = in.get<std::uint64_t>();
      auto record = Record::decode(in);
      if (!record) return not_ours;
      vote.accepted = Vote::Accepted{ballot, std::move(*record)};
    }
    if (!in.done() || file == kNoVoteFile || sequence > kVoteSequenceMax) return not_ours;
    if (sequence <= on_disk_.vote_sequence) continue;
    on_disk_.vote_file_id = file;
    on_disk_.vote_sequence = sequence;
    loaded.vote_step = step;
    loaded.vote = std::move(vote);
    newest = ByteWriter().block(bytes).take();
    newest_at = at;
  }
  if (newest.empty()) return {};
  // Where it is: the other slot, which is written next, may have the last vote that was said.
  ISTHMUS_CHECK(on_disk_.vote_file->write_at(newest_at, newest));
  return on_disk_.vote_file->sync();
}

Result<void> OuterStore::renew_vote_file(VoteFileId id) {
  on_disk_.vote_file_id = id;
  return write_vote(0, Vote{});
}

Result<bool> OuterStore::knows_recovery(const security::Digest& recovery) const {
  ISTHMUS_TRY(const bool any, disk_.exists(path("recovery")));
  if (!any) return false;
  ISTHMUS_TRY(const auto known, read_file(disk_, path("recovery"), recovery.bytes.size()));
  return std::equal(known.begin(), known.end(), recovery.bytes.begin(), recovery.bytes.end());
}

Result<void> OuterStore::note_recovery(const security::Digest& recovery) {
  return replace_file(disk_, path("recovery"), recovery.bytes);
}

Result<std::vector<KnownRoster>> OuterStore::note_roster(const KnownRoster& roster,
                                                         std::vector<Damaged>* damaged) {
  std::vector<KnownRoster> rosters;
  bool whole = true;
  ISTHMUS_TRY(const bool any, disk_.exists(path("rosters")));
  if (any) {
    ISTHMUS_TRY(const auto bytes, read_file(disk_, path("rosters"), kSmallFileBytesMax));
    // One that is damaged is begun anew: it only helps votes that were under way.
    whole = checks(bytes);
    ByteReader in(whole ? std::span(bytes).first(bytes.size() - 32) : std::span<const std::byte>());
    while (in.ok() && !in.done()) {
      KnownRoster known;
      known.digest = get_digest(in);
      known.sites = get_sites(in);
      known.voters = get_sites(in);
      if (in.ok()) rosters.push_back(std::move(known));
    }
  }
  if (!rosters.empty() && rosters.back() == roster) return rosters;
  std::erase(rosters, roster);
  rosters.push_back(roster);
  if (rosters.size() > kRostersKept) rosters.erase(rosters.begin());
  ByteWriter out;
  for (const auto& known : rosters) {
    put(out, known.digest);
    put_sites(out, known.sites);
    put_sites(out, known.voters);
  }
  ISTHMUS_CHECK(replace_file(disk_, path("rosters"), with_checksum(out)));
  if (!whole && damaged != nullptr)
    damaged->push_back({path("rosters") + " is damaged",
                        "it is begun anew with the roster of this start: only a vote that was "
                        "under way when the roster changed needed the older ones"});
  return rosters;
}

}  // namespace isthmus::inter
