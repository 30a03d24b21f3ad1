// How contributions of other sites arrive: announced, chunk by chunk, closed, held; and what stays
// of one when the disk is full.
#include <algorithm>
#include <utility>

#include "inter/exchange.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kUnannouncedMax = 512;    // of each link
constexpr std::ptrdiff_t kWrittenTogether = 8;  // chunks
constexpr Nanoseconds kWrittenSoon = kSecond;

}  // namespace

Result<Open> Exchange::check_open(const Signed& message) const {
  const auto open = decode_open(message.body);
  if (!open) return Error{ErrorCode::bad_frame, "an open that does not decode"};
  if (open->id != id_ || !view_.is_member(message.signer))
    return Error{ErrorCode::unavailable, "an open of another step"};
  // Everything is compared before any memory is set aside for it.
  if (!plan_->fits(*open) || open->base != parent_ || open->tokens > kTokensMax)
    return Error{ErrorCode::mismatch, "an open with another codec, cut, size or base"};
  return *open;
}

// A full disk may still take what is small: only bytes of a contribution show that it has room.
void Exchange::note_disk(const Result<void>& written) {
  if (!written) return note_disk_error(written.error());
  disk_refuses_.clear();
  const auto now = context_.loop.now();
  if (!disk_refusal_ || now < disk_refusal_->last + kDiskRefusalsApart) return;
  if (disk_refusal_->told)
    context_.log.info(
        "disk_takes_again", {.outer_step = static_cast<std::int64_t>(id_.step)},
        {{"what", "contributions"}, {"seconds", (now - disk_refusal_->since) / kSecond}});
  disk_refusal_.reset();
}

void Exchange::note_disk_error(const Error& error) {
  if (error.code != ErrorCode::disk_full && error.code != ErrorCode::io &&
      error.code != ErrorCode::permission && error.code != ErrorCode::wrong_kind)
    return;
  disk_refuses_ = error.text();
  const auto now = context_.loop.now();
  if (!disk_refusal_) disk_refusal_ = {.since = now};
  disk_refusal_->last = now;
  // Once a minute while it lasts; one that begins sooner, unless there were many.
  if (disk_refusal_->told && now < *disk_refusal_->told + kDiskFailuresApart)
    return disk_failures_.leave_out();
  if (const auto left_out = disk_failures_.due(now)) {
    disk_refusal_->told = now;
    context_.log.alarm("disk_failed", {.outer_step = static_cast<std::int64_t>(id_.step)},
                       {{"why", disk_refuses_}, {"left_out", *left_out}});
  }
}

void Exchange::on_open(Link* from, const Signed& message) {
  const auto open = check_open(message);
  if (!open) {
    if (open.error().code == ErrorCode::unavailable) return;
    if (const auto left_out = refused_opens_.due(context_.loop.now()))
      context_.log.alarm(
          "open_refused", {.outer_step = static_cast<std::int64_t>(id_.step)},
          {{"signer", message.signer}, {"why", open.error().message}, {"left_out", *left_out}});
    return;
  }
  if (message.signer == context_.self && !lacks_own()) return;
  const auto key = std::pair(id_.step, message.signer);
  const auto transfer = transfer_of(message);
  auto began = context_.loop.now();
  if (const auto found = entries_.find(key); found != entries_.end()) {
    auto& entry = *found->second;
    const auto& known = *entry.contribution;
    if (known.transfer() == transfer) {
      if (from != nullptr) {
        entry.announced[from->peer().site] = from->session();
        from->have(transfer, known.bitmap());
      }
      return;
    }
    // Of a site's attempts the newest counts, whoever brings it: others may still pass on earlier
    // ones, which were never closed. But what is decided is fetched, whichever it is: it is the
    // first that comes from whom it was asked of.
    const auto* wanted = decided(message.signer);
    const bool newer = wanted == nullptr && open->attempt > known.open().attempt;
    const bool fetched = wanted != nullptr && !(known.close() && known.part() == *wanted) &&
                         was_asked(from, message.signer) &&
                         !std::exchange(sought_[message.signer].asked.opened, true);
    // Not whole anywhere, or its site would not have made another one (Gateway::may_contribute).
    if (entry.held || entry.finishing || !(newer || fetched)) return;
    // Beginning again is no progress of what others are asked for.
    if (!fetched) began = entry.last_arrival;
    remove(found);
  } else if (from != nullptr) {
    from->await_chunks();
  }
  auto entry = std::make_shared<Entry>();
  entry->contribution = std::make_shared<Contribution>(plan_, message, *open);
  entry->last_arrival = began;
  auto file = context_.store.contributions().create(id_.step, message);
  if (!file) {
    note_disk_error(file.error());
    open_again(from, message, open->attempt);
    return;
  }
  entry->file = std::move(*file);
  place(entry);
  if (from != nullptr) {
    entry->announced[from->peer().site] = from->session();
    from->have(transfer, entry->contribution->bitmap());
  }
  // While the disk refuses nothing gives up the chunks of an attempt that was withdrawn, and
  // without their credit those of the next one do not come.
  const auto is_given_up = [&](const UnannouncedChunk& chunk) {
    return chunk.link == from && !disk_refuses_.empty();
  };
  auto waiting = std::exchange(unannounced_, {});
  for (auto& [site, chunks] : waiting)
    for (auto& chunk : chunks) {
      if (chunk.arrival.transfer == transfer)
        receive(*chunk.link, entry, chunk.arrival, chunk.sealed);
      else if (is_given_up(chunk))
        chunk.link->settle(chunk.arrival, false);
      else
        unannounced_[site].push_back(std::move(chunk));
    }
}

// An announcement comes but once in a session: it is kept until the disk may have room.
void Exchange::open_again(Link* from, const Signed& message, std::uint64_t attempt) {
  const auto site = message.signer;
  const auto before = opening_again_.find(site);
  const bool pending = before != opening_again_.end();
  if (pending && attempt <= before->second.attempt) return;
  opening_again_.insert_or_assign(site, Announced{from, message, attempt, std::nullopt});
  if (pending) return;
  context_.loop.call_after(kRetryDisk, [this, site] {
    const auto kept = opening_again_.extract(site);
    const auto& announced = kept.mapped();
    on_open(announced.from, announced.open);  // one of an older step, or attempt: nothing
    if (announced.close) on_close(announced.from, *announced.close);
  });
}

void Exchange::on_close(Link* from, const Signed& message) {
  const auto close = decode_close(message.body);
  if (!close || close->id != id_) return;
  const auto entry = find(close->transfer);
  if (const auto kept = opening_again_.find(message.signer);
      !entry && kept != opening_again_.end()) {
    kept->second.close = message;
    return;
  }
  if (const auto* known = current(message.signer);
      known != nullptr && known->contribution->close() &&
      known->contribution->transfer() != close->transfer) {
    // What nobody has whole its site may make anew, which its announcement begins.
    if (known->held) tell_of_two_contributions(message.signer, context_.self);
    return;
  }
  if (!entry || entry->contribution->site() != message.signer ||
      entry->contribution->step() != id_.step)
    return;
  // What is decided has one root; of what else its site says of it, who was asked is believed.
  const auto* wanted = entry->held ? nullptr : decided(message.signer);
  if (wanted != nullptr && close->root != wanted->root) return;
  entry->contribution->prefer_close(state_root_);
  if (!entry->contribution->set_close(message, *close)) {
    if (wanted != nullptr && was_asked(from, message.signer) && !entry->finishing) {
      if (const auto fresh = begin_anew(entry)) fresh->contribution->set_close(message, *close);
      return;
    }
    if (const auto left_out = refused_closes_.due(context_.loop.now()))
      context_.log.alarm("two_closes", {.outer_step = static_cast<std::int64_t>(id_.step)},
                         {{"signer", message.signer}, {"left_out", *left_out}});
    return;
  }
  if (entry->contribution->complete() && !entry->finishing) context_.loop.spawn(finish(entry));
}

void Exchange::drop_unannounced() {
  const auto dropped = std::exchange(unannounced_, {});
  for (const auto& [site, chunks] : dropped)
    for (const auto& chunk : chunks) chunk.link->settle(chunk.arrival, false);
}

void Exchange::session_ended(Link& link) {
  const auto site = link.peer().site;
  unannounced_.erase(site);
  // Of what it was asked for nothing comes: the next one is.
  for (auto& [of, sought] : sought_)
    if (sought.asked.peer == site) sought.asked.session_ended = true;
  if (const auto serving = serving_.find(site); serving != serving_.end())
    serving->second.next.clear();
}

void Exchange::on_chunk(Link& link, const ChunkArrival& arrival, const SharedBytes& sealed) {
  if (const auto entry = find(arrival.transfer)) return receive(link, entry, arrival, sealed);
  if (auto& waiting = unannounced_[link.peer().site]; waiting.size() < kUnannouncedMax) {
    // Its announcement may still be on its way on the other lane, or wait for the disk.
    if (!disk_refuses_.empty()) link.stall(arrival);
    waiting.push_back({&link, arrival, sealed, context_.loop.now()});
  } else {
    link.settle(arrival, false);
  }
}

void Exchange::receive(Link& link, const EntryPtr& entry, const ChunkArrival& arrival,
                       const SharedBytes& sealed) {
  const auto index = arrival.index;
  const auto site = entry->contribution->site();
  const auto sought = sought_.find(site);
  const bool from_one_alone = sought != sought_.end() && sought->second.from_one_alone;
  if (index >= plan_->chunks() || (entry->held && !entry->contribution->has(index)) ||
      (from_one_alone && !was_asked(&link, site))) {
    link.settle(arrival, false);
    return;
  }
  if (entry->contribution->has(index)) {
    link.settle(arrival, true);
    return;
  }
  auto& arriving = entry->arriving[index];
  if (const auto chunk = arriving.lock()) return note_copy(*chunk, {&link, arrival, sealed});
  auto chunk = std::make_shared<ArrivedChunk>();
  chunk->entry = entry;
  chunk->index = index;
  chunk->since = context_.loop.now();
  chunk->copies.push_back({&link, arrival, sealed});
  arriving = chunk;
  check(chunk);
}

// The first may be bad, or of a session that has ended.
void Exchange::note_copy(ArrivedChunk& chunk, const ChunkCopy& copy) {
  auto kept = std::ranges::find(chunk.copies, copy.link, &ChunkCopy::link);
  if (kept == chunk.copies.end())
    kept = chunk.copies.insert(kept, copy);
  else if (kept->arrival.session != copy.arrival.session)
    kept->arrival = copy.arrival;
  else
    copy.link->settle(copy.arrival, false);  // the other one is acknowledged
  // What comes again because this takes so long would do so again and again.
  if (chunk.disk_refused || context_.loop.now() - chunk.since > kWrittenSoon)
    kept->link->stall(kept->arrival);
}

void Exchange::check(const std::shared_ptr<ArrivedChunk>& chunk) {
  auto run = [chunk, contribution = chunk->entry->contribution,
              sealed = chunk->copies.front().sealed, plan = plan_, &verifier = context_.verifier] {
    chunk->checked = check_chunk(*plan, verifier, contribution->seals(), contribution->site(),
                                 contribution->transfer(), chunk->index, sealed);
  };
  context_.workers.submit(
      std::move(run), [this, chunk] { on_checked(chunk); }, 8 * plan_->elements(chunk->index));
}

void Exchange::on_checked(const std::shared_ptr<ArrivedChunk>& chunk) {
  if (chunk->checked) return write(chunk);
  const auto& entry = chunk->entry;
  const auto bad = chunk->copies.front();
  chunk->copies.erase(chunk->copies.begin());
  sought_[entry->contribution->site()].refused.insert(bad.link->peer().site);
  if (const auto left_out = refused_chunks_.due(context_.loop.now()))
    context_.log.alarm("chunk_refused",
                       {.peer = bad.link->peer_name(),
                        .outer_step = static_cast<std::int64_t>(entry->contribution->step())},
                       {{"why", chunk->checked.error().text()}, {"left_out", *left_out}});
  bad.link->settle(bad.arrival, false);
  if (chunk->copies.empty())
    entry->arriving.erase(chunk->index);
  else
    check(chunk);
}

void Exchange::write(const std::shared_ptr<ArrivedChunk>& chunk) {
  const auto [waiting, first] = to_write_.try_emplace(chunk->entry);
  waiting->second.push_back(chunk);
  if (first) write_waiting(chunk->entry);
}

// What has come while the last ones were written goes together; what the disk refused goes alone,
// for which there may be room.
void Exchange::write_waiting(const EntryPtr& entry) {
  auto& waiting = to_write_.at(entry);
  if (waiting.empty()) {
    to_write_.erase(entry);
    return;
  }
  auto end = waiting.begin() + std::min(std::ssize(waiting), kWrittenTogether);
  end = std::find_if(waiting.begin(), end, [](const auto& chunk) { return chunk->disk_refused; });
  if (end == waiting.begin()) ++end;
  auto chunks = std::make_shared<std::vector<std::shared_ptr<ArrivedChunk>>>(
      std::make_move_iterator(waiting.begin()), std::make_move_iterator(end));
  waiting.erase(waiting.begin(), end);
  std::uint64_t bytes = 0;
  std::vector<StoredChunk> stored;
  for (const auto& chunk : *chunks) {
    const auto& sealed = chunk->copies.front().sealed;
    stored.emplace_back(chunk->index, sealed);
    bytes += sealed.size();
  }
  auto written = std::make_shared<Result<void>>();
  auto run = [written, stored = std::move(stored), file = entry->file] {
    *written = file->add(stored);
  };
  context_.workers.submit(
      std::move(run),
      [this, entry, chunks, written] {
        write_waiting(entry);
        note_disk(*written);
        for (const auto& chunk : *chunks) on_written(chunk, written->has_value());
      },
      bytes, Urgency::disk);
}

void Exchange::on_written(const std::shared_ptr<ArrivedChunk>& chunk, bool written) {
  const auto& entry = chunk->entry;
  const auto settle_all = [](ArrivedChunk& of, bool accepted) {
    of.entry->arriving.erase(of.index);
    for (const auto& copy : of.copies) copy.link->settle(copy.arrival, accepted);
  };
  if (!written) {
    // Refused it would come again at once, and again: it stays.
    for (const auto& copy : chunk->copies) copy.link->stall(copy.arrival);
    chunk->disk_refused = true;
    context_.loop.call_after(kRetryDisk, [this, chunk, settle_all] {
      const auto& contribution = *chunk->entry->contribution;
      // In the place of one that is replaced the newer one needs the credit, and the room.
      if (contribution.step() == id_.step && current(contribution.site()) == chunk->entry.get())
        write(chunk);
      else
        settle_all(*chunk, false);
    });
    return;
  }
  entry->last_arrival = context_.loop.now();
  auto& sought = sought_[entry->contribution->site()];
  for (const auto& copy : chunk->copies) {
    const auto from = copy.link->peer().site;
    sought.silent.erase(from);
    sought.broke_off.erase(from);
    silent_.erase(from);
    if (from == entry->contribution->site()) sought.without_way = false;
    if (sought.asked.peer == from) served_at_[from] = entry->last_arrival;
  }
  entry->brought_by = chunk->copies.front().link->peer().site;
  entry->contribution->add(chunk->index, std::move(chunk->checked->sealed),
                           std::move(chunk->checked->coded));
  rate(*entry);
  settle_all(*chunk, true);
  if (entry->contribution->step() == id_.step) on_chunk_added_(chunk->index);
  if (entry->contribution->complete() && !entry->finishing) context_.loop.spawn(finish(entry));
}

// All chunks and the close are here: does it hold? Enough disks have its bytes before any vote may
// name it, so that a majority that keeps its disks can always finish the step.
Task<void> Exchange::finish(EntryPtr entry) {
  if (entry->finishing || entry->held) co_return;
  entry->finishing = true;
  const auto& contribution = *entry->contribution;
  const auto site = contribution.site();
  if (contribution.step() != id_.step) {
    entry->finishing = false;  // too late for its step, whose state is no longer at hand
    co_return;
  }
  if (!contribution.proven()) {
    if (const auto left_out = refused_closes_.due(context_.loop.now()))
      context_.log.alarm("contribution_refused",
                         {.outer_step = static_cast<std::int64_t>(contribution.step())},
                         {{"signer", site},
                          {"why", "the root is not that of its chunks"},
                          {"left_out", *left_out}});
    begin_anew(entry);
    if (decided(site) != nullptr) fetch_from_one_alone(site);
    co_return;
  }
  if (const auto* wanted = decided(site); wanted != nullptr && *wanted != contribution.part()) {
    // Acknowledged it stays, until what is decided takes its place.
    entry->finishing = false;
    entry->last_arrival = 0;
    sought_[site].asked = {};
    consider_fetching();
    co_return;
  }
  if (contribution.close()->state_root != state_root_) {
    if (const auto left_out = differing_.due(context_.loop.now()))
      context_.log.alarm("state_differs",
                         {.outer_step = static_cast<std::int64_t>(contribution.step())},
                         {{"signer", site},
                          {"theirs", contribution.close()->state_root.hex()},
                          {"ours", state_root_.hex()},
                          {"left_out", *left_out}});
    entry->finishing = false;
    on_differing_state_();
    co_return;
  }
  const auto root = state_root_;
  // Where every majority has its site, whose own disk has it: nobody waits for ours.
  const bool every_majority_has_it =
      view_.is_voter(site) && view_.majority() == view_.voters.size();
  if (every_majority_has_it) hold(entry);
  auto written = co_await write_close(entry);
  note_disk(written);
  while (!written) {
    co_await context_.loop.sleep(kRetryDisk);
    // Its file's name may be that of another one by now.
    if (contribution.step() != id_.step || current(site) != entry.get()) break;
    written = co_await write_anew(entry);
    note_disk(written);
  }
  entry->finishing = false;
  if (!written) co_return;
  if (contribution.step() == id_.step && root != state_root_) {
    context_.loop.spawn(finish(entry));  // our state changed meanwhile
    co_return;
  }
  if (!entry->held) hold(entry);
}

void Exchange::hold(const EntryPtr& entry) {
  const auto& contribution = *entry->contribution;
  entry->held = true;
  if (contribution.step() != id_.step || current(contribution.site()) != entry.get()) return;
  on_held_(contribution.part());
  compare_with_elsewhere(contribution.site());
}

void Exchange::note_held_elsewhere(SiteId holder, const std::vector<Part>& parts) {
  for (const auto& part : parts) {
    // What it held of its own it may have lost since, and made anew.
    if (part.site == holder || !view_.is_member(part.site)) continue;
    const HeldElsewhere said{part, holder};
    const auto [known, first] = held_elsewhere_.try_emplace(part.site, said);
    const bool from_another = !first && known->second.holder != holder;
    if (from_another && known->second.part != part) tell_of_two_contributions(part.site, holder);
    known->second = said;
    compare_with_elsewhere(part.site);
  }
}

void Exchange::compare_with_elsewhere(SiteId site) {
  const auto ours = held(id_.step, site);
  const auto elsewhere = held_elsewhere_.find(site);
  if (ours && elsewhere != held_elsewhere_.end() && ours->part() != elsewhere->second.part)
    tell_of_two_contributions(site, elsewhere->second.holder);
}

void Exchange::tell_of_two_contributions(SiteId signer, SiteId other_at) {
  if (const auto left_out = two_contributions_.due(context_.loop.now()))
    context_.log.alarm("two_contributions", {.outer_step = static_cast<std::int64_t>(id_.step)},
                       {{"signer", signer}, {"at", other_at}, {"left_out", *left_out}});
}

// Nothing of it counts, on disk neither: what comes again may be other chunks. Jobs on workers may
// still be about what was there. Null: the disk refuses, or something else is in its place.
Exchange::EntryPtr Exchange::begin_anew(const EntryPtr& entry) {
  const auto& refused = *entry->contribution;
  entry->finishing = true;  // for good
  if (current(refused.site()) != entry.get()) return nullptr;
  auto fresh = std::make_shared<Entry>();
  fresh->contribution =
      std::make_shared<Contribution>(plan_, refused.announcement(), refused.open());
  fresh->last_arrival = entry->last_arrival;
  auto file = context_.store.contributions().create(refused.step(), refused.announcement());
  if (!file) {
    note_disk_error(file.error());
    forget(refused.step(), refused.site());
    return nullptr;
  }
  fresh->file = std::move(*file);
  place(fresh);
  return fresh;
}

Task<Result<void>> Exchange::write_close(EntryPtr entry) {
  Result<void> written;
  auto write = [&written, entry, close = *entry->contribution->close_message()] {
    written = entry->file->add_close(close);
    if (written) written = entry->file->sync();
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), entry->contribution->bytes(),
                  Urgency::disk);
  co_return written;
}

// All of it into a new file: Linux may have dropped what it could not write. The old one goes
// first, so that a full disk needs no more room.
Task<Result<void>> Exchange::write_anew(EntryPtr entry) {
  const auto& contribution = *entry->contribution;
  entry->file.reset();
  // On this thread: what takes its place comes after it, and with the name.
  auto file =
      context_.store.contributions().create(contribution.step(), contribution.announcement());
  if (!file) co_return file.error();
  entry->file = std::move(*file);
  Result<void> written;
  auto write = [&written, entry, close = *contribution.close_message()] {
    written = entry->file->add_all(*entry->contribution);
    if (written) written = entry->file->add_close(close);
    if (written) written = entry->file->sync();
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), contribution.bytes(),
                  Urgency::disk);
  co_return written;
}

void Exchange::forget(std::uint64_t step, SiteId site) {
  const auto found = entries_.find({step, site});
  if (found == entries_.end()) return;
  for (auto& [id, peer] : context_.peers.all())
    peer.link->withdraw(found->second->contribution->transfer());
  remove(found);
  if (step == id_.step) sought_[site].asked = {};
}

}  // namespace isthmus::inter
