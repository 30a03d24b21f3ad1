#include "inter/exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"

namespace isthmus::inter {
namespace {

constexpr std::size_t kEarlyChunksMax = 64;

}  // namespace

Exchange::Exchange(Context context, std::shared_ptr<const ChunkPlan> plan,
                   std::function<void(const Part&)> on_held,
                   std::function<void(std::uint32_t)> on_chunk_added,
                   std::function<void()> on_differing_state)
    : context_(std::move(context)),
      plan_(std::move(plan)),
      on_held_(std::move(on_held)),
      on_chunk_added_(std::move(on_chunk_added)),
      on_differing_state_(std::move(on_differing_state)) {}

void Exchange::begin_step(const StepId& id, const View& view, const security::Digest& parent,
                          const security::Digest& state_root, std::uint64_t keep_from) {
  const bool base_changed = id_ == id && state_root_ != state_root;
  id_ = id;
  view_ = view;
  parent_ = parent;
  state_root_ = state_root;
  wanted_.clear();
  asked_.clear();
  lacking_.clear();
  refused_of_.clear();
  drop_early();
  for (auto it = entries_.begin(); it != entries_.end();) {
    if (it->first.first >= keep_from) {
      ++it;
      continue;
    }
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(it->second->contribution->transfer());
    it = entries_.erase(it);
  }
  // What did not fit our state may fit it now.
  if (base_changed)
    for (const auto& [key, entry] : entries_)
      if (key.first == id_.step && entry->contribution->complete() && !entry->held)
        context_.loop.spawn(finish(entry));
}

Exchange::EntryPtr Exchange::find(TransferId transfer) const {
  for (const auto& [key, entry] : entries_)
    if (entry->contribution->transfer() == transfer) return entry;
  return nullptr;
}

Exchange::Entry* Exchange::current(SiteId site) const {
  const auto found = entries_.find({id_.step, site});
  return found == entries_.end() ? nullptr : found->second.get();
}

std::shared_ptr<const Contribution> Exchange::held(std::uint64_t step, SiteId site) const {
  const auto found = entries_.find({step, site});
  return found != entries_.end() && found->second->held ? found->second->contribution : nullptr;
}

std::shared_ptr<const Contribution> Exchange::incoming(SiteId site) const {
  const auto* entry = current(site);
  return entry == nullptr ? nullptr : entry->contribution;
}

std::vector<SiteId> Exchange::holds() const {
  std::vector<SiteId> sites;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && entry->held) sites.push_back(key.second);
  return sites;
}

std::vector<SiteId> Exchange::holds_soon() const {
  std::vector<SiteId> sites;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && (entry->held || entry->finishing)) sites.push_back(key.second);
  return sites;
}

std::optional<Exchange::ChunkName> Exchange::first_missing(
    std::span<const ChunkName> chunks) const {
  std::optional<TransferId> looked_up;
  EntryPtr entry;
  for (const auto& [transfer, index] : chunks) {
    if (looked_up != transfer) entry = find(transfer);
    looked_up = transfer;
    if (entry && index < plan_->chunks() && !entry->contribution->has(index))
      return ChunkName(transfer, index);
  }
  return std::nullopt;
}

std::map<SiteId, security::Digest> Exchange::claimed_roots(std::uint64_t step) const {
  std::map<SiteId, security::Digest> roots;
  if (step != id_.step) return roots;
  for (const auto& [key, entry] : entries_)
    if (key.first == id_.step && key.second != context_.self && entry->contribution->close())
      roots[key.second] = entry->contribution->close()->state_root;
  return roots;
}

bool Exchange::sending(const View& view) const {
  const auto* own = current(context_.self);
  return own != nullptr &&
         std::any_of(context_.peers.all().begin(), context_.peers.all().end(), [&](const auto& p) {
           const auto& [site, peer] = p;
           return (view.is_member(site) || view.is_voter(site)) && peer.link->up() &&
                  peer.link->sends(own->contribution->transfer());
         });
}

bool Exchange::arriving(SiteId site) const {
  const auto* entry = current(site);
  return entry != nullptr && !entry->held &&
         context_.loop.now() - entry->last_arrival < kFetchPatience;
}

std::uint64_t Exchange::bytes_held() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry->contribution->bytes();
  return bytes;
}

bool Exchange::contributed() const {
  const auto* entry = current(context_.self);
  return entry != nullptr && entry->held;
}

void Exchange::send_signed(Link& link, const Signed& message) { link.send(message.encode()); }

// --- Our own

Task<Result<Feedback>> Exchange::contribute(std::span<const float> agreed,
                                            std::vector<float> parameters,
                                            std::span<const float> feedback, std::uint64_t tokens) {
  const Open open = plan_->announce(id_, tokens, parent_, context_.random.next());
  const auto state_root_of_base = state_root_;
  const auto step = id_.step;
  auto entry = std::make_shared<Entry>();
  entry->contribution = std::make_shared<Contribution>(
      plan_, sign(context_.signer, context_.self, MessageType::open, encode(open)), open);
  entry->checking.resize(plan_->chunks());
  auto file = context_.store.contributions().create(step, entry->contribution->announcement());
  if (!file) {
    note_disk_error(file.error());
    co_return file.error();
  }
  entry->file = std::move(*file);
  const bool again = entries_.count({step, context_.self}) > 0;
  if (again)
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entries_[{step, context_.self}]->contribution->transfer());
  entries_[{step, context_.self}] = entry;
  contributing_ = true;
  for (auto* peer : context_.peers.working_on(step)) offer(*peer->link, entry->contribution);

  Feedback result{
      .step = step, .root = {}, .tokens = tokens, .residual = std::vector<float>(agreed.size())};
  struct Coded {
    Bytes sealed;
    security::Digest hash;
  };
  auto coded = std::make_shared<std::vector<Coded>>(plan_->chunks());  // with the jobs
  const auto transfer = entry->contribution->transfer();
  const auto code = [=, this, &parameters, &result](std::uint32_t i) -> Result<void> {
    ISTHMUS_TRY(const auto payload,
                code_chunk(*plan_, i, agreed, feedback, parameters, result.residual));
    auto& chunk = (*coded)[i];
    chunk.hash = chunk_hash(transfer, i, payload);
    chunk.sealed = seal_chunk(context_.signer, chunk.hash, payload);
    return entry->file->add(i, chunk.sealed);
  };
  const auto offer_chunk = [=, this](std::uint32_t i) {
    auto& chunk = (*coded)[i];
    entry->contribution->add(i, std::make_shared<const Bytes>(std::move(chunk.sealed)), chunk.hash);
    if (step == id_.step) on_chunk_added_(i);
    for (auto& [site, peer] : context_.peers.all())
      if (peer.link->up()) peer.link->poke();
  };
  auto all_coded = co_await run_all(context_.workers, context_.loop, plan_->chunks(),
                                    12 * plan_->chunk_elements(), code, offer_chunk);
  const auto take_back = [this, entry, step] {
    contributing_ = false;
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entry->contribution->transfer());
    entries_.erase({step, context_.self});
  };
  note_disk(all_coded);
  if (!all_coded) {
    take_back();
    co_return all_coded.error();
  }
  result.root = entry->contribution->root();
  context_.at_point("before_close", step);
  // What was cut off first, then the close: whoever finds the close finds the feedback too.
  Close close{.id = open.id,
              .transfer = transfer,
              .root = result.root,
              .bytes = entry->contribution->bytes(),
              .tokens = tokens,
              .base = open.base,
              .state_root = state_root_of_base};
  const auto message = sign(context_.signer, context_.self, MessageType::close, encode(close));
  Result<void> written;
  auto write = [this, &result, &written, entry, message] {
    written = context_.store.write_feedback(result);
    context_.at_point("feedback_written", result.step);
    if (written) written = entry->file->add_close(message);
    if (written) written = entry->file->sync();
    if (written) context_.store.settle_feedback(result);
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), 4 * agreed.size());
  note_disk(written);
  if (!written) {
    take_back();
    co_return written.error();
  }
  contributing_ = false;
  entry->contribution->set_close(message, close);
  entry->held = true;
  if (step == id_.step) {
    for (auto* peer : context_.peers.working_on(step)) send_signed(*peer->link, message);
    on_held_(entry->contribution->part());
  }
  context_.log.info("contributed", {.outer_step = static_cast<std::int64_t>(step)},
                    {{"tokens", tokens}, {"bytes", entry->contribution->bytes()}});
  co_return result;
}

Task<Result<void>> Exchange::close_again() {
  const auto found = entries_.find({id_.step, context_.self});
  if (found == entries_.end() || !found->second->held ||
      found->second->contribution->close()->state_root == state_root_)
    co_return Result<void>();
  const auto entry = found->second;
  Close close = *entry->contribution->close();
  close.state_root = state_root_;
  const auto message = sign(context_.signer, context_.self, MessageType::close, encode(close));
  Result<void> written;
  auto write = [this, &written, &message, step = close.id.step] {
    written = context_.store.contributions().append_close(step, message);
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), 4096);
  if (!written) co_return written;
  entry->contribution->set_close(message, close);
  for (auto* peer : context_.peers.working_on(close.id.step)) send_signed(*peer->link, message);
  on_held_(entry->contribution->part());
  co_return Result<void>();
}

void Exchange::offer(Link& link, const std::shared_ptr<Contribution>& contribution) {
  send_signed(link, contribution->announcement());
  // In a first session nothing can have arrived; later the peer says what it has.
  const bool resume = link.counters().sessions > 1;
  link.offer(contribution->transfer(), contribution->step(), plan_->chunks(), contribution, resume);
}

void Exchange::announce(Link& link) {
  const auto found = entries_.find({id_.step, context_.self});
  if (found == entries_.end()) return;
  offer(link, found->second->contribution);
  if (found->second->held) send_signed(link, *found->second->contribution->close_message());
}

// --- Others'

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
  if (written)
    disk_refuses_.clear();
  else
    note_disk_error(written.error());
}

void Exchange::note_disk_error(const Error& error) {
  if (error.code != ErrorCode::disk_full && error.code != ErrorCode::io &&
      error.code != ErrorCode::permission)
    return;
  disk_refuses_ = error.text();
  if (const auto left_out = disk_failures_.due(context_.loop.now()))
    context_.log.alarm("disk_failed", {.outer_step = static_cast<std::int64_t>(id_.step)},
                       {{"why", disk_refuses_}, {"left_out", *left_out}});
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
    if (entry.contribution->transfer() == transfer) {
      if (from != nullptr) from->have(transfer, entry.contribution->bitmap());
      return;
    }
    // One that was never closed, from before a restart of its site, may still be passed on by
    // others.
    const bool from_origin = from != nullptr && from->peer().site == message.signer;
    // But one that is decided is fetched from whoever has it, when nothing comes of what is here.
    const bool fetched = wanted_.count(message.signer) > 0 &&
                         context_.loop.now() - entry.last_arrival > kFetchPatience;
    // Not whole anywhere, or its site would not have made another one (Gateway::may_contribute).
    if (entry.held || entry.finishing || !(from_origin || fetched)) return;
    // Beginning again is no progress of what others are asked for.
    if (!fetched) began = entry.last_arrival;
    entries_.erase(found);
  }
  auto entry = std::make_shared<Entry>();
  entry->contribution = std::make_shared<Contribution>(plan_, message, *open);
  entry->checking.resize(plan_->chunks());
  entry->last_arrival = began;
  auto file = context_.store.contributions().create(id_.step, message);
  if (!file) {
    note_disk_error(file.error());
    open_again(from, message);
    return;
  }
  entry->file = std::move(*file);
  entries_[key] = entry;
  if (from != nullptr) from->have(transfer, entry->contribution->bitmap());
  auto early = std::exchange(early_, {});
  for (auto& chunk : early) {
    if (chunk.arrival.transfer == transfer)
      receive(*chunk.link, entry, chunk.arrival, std::move(chunk.sealed));
    else
      early_.push_back(std::move(chunk));
  }
}

// An announcement comes but once in a session: it is kept until the disk may have room. Of several
// the origin's own newest one counts.
void Exchange::open_again(Link* from, const Signed& message) {
  const auto site = message.signer;
  const bool pending = opening_again_.contains(site);
  if (pending && (from == nullptr || from->peer().site != site)) return;
  opening_again_.insert_or_assign(site, std::pair(from, message));
  if (pending) return;
  context_.loop.call_after(kRetryDisk, [this, site] {
    const auto kept = opening_again_.extract(site);
    const auto& [link, open] = kept.mapped();
    if (entries_.count({id_.step, site}) == 0)
      on_open(link, open);  // one of an older step: nothing
  });
}

void Exchange::on_close(const Signed& message) {
  const auto close = decode_close(message.body);
  if (!close || close->id != id_) return;
  const auto entry = find(close->transfer);
  if (const auto* known = current(message.signer);
      known != nullptr && known->contribution->close() &&
      known->contribution->transfer() != close->transfer) {
    if (const auto left_out = refused_closes_.due(context_.loop.now()))
      context_.log.alarm("two_contributions", {.outer_step = static_cast<std::int64_t>(id_.step)},
                         {{"signer", message.signer}, {"left_out", *left_out}});
    return;
  }
  if (!entry || entry->contribution->site() != message.signer ||
      entry->contribution->step() != id_.step)
    return;
  if (!entry->contribution->set_close(message, *close)) {
    if (const auto left_out = refused_closes_.due(context_.loop.now()))
      context_.log.alarm("two_closes", {.outer_step = static_cast<std::int64_t>(id_.step)},
                         {{"signer", message.signer}, {"left_out", *left_out}});
    return;
  }
  if (entry->contribution->complete() && !entry->finishing) context_.loop.spawn(finish(entry));
}

void Exchange::drop_early() {
  for (const auto& chunk : std::exchange(early_, {})) chunk.link->settle(chunk.arrival, false);
}

void Exchange::session_ended(Link& link) {
  std::erase_if(early_, [&](const auto& chunk) { return chunk.link == &link; });
  asked_.clear();
}

void Exchange::on_chunk(Link& link, const ChunkArrival& arrival,
                        std::span<const std::byte> sealed) {
  const auto entry = find(arrival.transfer);
  if (entry) {
    receive(link, entry, arrival, Bytes(sealed.begin(), sealed.end()));
  } else if (early_.size() < kEarlyChunksMax) {
    // Its announcement may still be on its way on the other lane, or wait for the disk.
    if (!disk_refuses_.empty()) link.stall(arrival);
    early_.push_back({&link, arrival, Bytes(sealed.begin(), sealed.end()), context_.loop.now()});
  } else {
    link.settle(arrival, false);
  }
}

void Exchange::receive(Link& link, const EntryPtr& entry, const ChunkArrival& arrival,
                       Bytes sealed) {
  const auto index = arrival.index;
  if (index >= plan_->chunks() || (entry->held && !entry->contribution->has(index))) {
    link.settle(arrival, false);
    return;
  }
  if (entry->contribution->has(index) || entry->checking[index]) {
    // Twice. While the first copy is being checked it is not acknowledged on account of the second.
    link.settle(arrival, entry->contribution->has(index));
    return;
  }
  entry->checking[index] = true;
  auto chunk = std::make_shared<ArrivedChunk>(link, entry, arrival);
  chunk->sealed = std::make_shared<Bytes>(std::move(sealed));
  check(std::move(chunk));
}

void Exchange::check(std::shared_ptr<ArrivedChunk> chunk) {
  const auto index = chunk->arrival.index;
  auto run = [chunk, contribution = chunk->entry->contribution, index, plan = plan_,
              &verifier = context_.verifier] {
    chunk->hash = check_chunk(*plan, verifier, contribution->site(), contribution->transfer(),
                              index, *chunk->sealed);
    if (chunk->hash) chunk->written = chunk->entry->file->add(index, *chunk->sealed);
  };
  context_.workers.submit(
      std::move(run), [this, chunk] { on_checked(chunk); }, 8 * plan_->elements(index));
}

void Exchange::on_checked(const std::shared_ptr<ArrivedChunk>& chunk) {
  const auto& entry = chunk->entry;
  auto& link = chunk->link;
  if (!chunk->hash) {
    entry->checking[chunk->arrival.index] = false;
    refused_of_[entry->contribution->site()].insert(link.peer().site);
    if (const auto left_out = refused_chunks_.due(context_.loop.now()))
      context_.log.alarm("chunk_refused",
                         {.peer = link.peer_name(),
                          .outer_step = static_cast<std::int64_t>(entry->contribution->step())},
                         {{"why", chunk->hash.error().text()}, {"left_out", *left_out}});
    link.settle(chunk->arrival, false);
    return;
  }
  note_disk(chunk->written);
  if (!chunk->written) {
    // Refused it would come again at once, and again: it stays.
    link.stall(chunk->arrival);
    context_.loop.call_after(kRetryDisk, [this, chunk] {
      if (chunk->entry->contribution->step() == id_.step) return check(chunk);
      chunk->entry->checking[chunk->arrival.index] = false;
      chunk->link.settle(chunk->arrival, false);
    });
    return;
  }
  entry->checking[chunk->arrival.index] = false;
  entry->last_arrival = context_.loop.now();
  entry->contribution->add(chunk->arrival.index, chunk->sealed, *chunk->hash);
  link.settle(chunk->arrival, true);
  if (entry->contribution->step() == id_.step) on_chunk_added_(chunk->arrival.index);
  if (entry->contribution->complete() && !entry->finishing) context_.loop.spawn(finish(entry));
}

// All chunks and the close are here: does it hold? Its bytes are synced before any vote may name
// it, so that a majority that keeps its disks can always finish the step.
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
    begin_anew(*entry);
    co_return;
  }
  if (const auto wanted = wanted_.find(site);
      wanted != wanted_.end() && wanted->second != contribution.part()) {
    forget(site);
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
  auto written = co_await write_close(entry);
  note_disk(written);
  while (!written) {
    co_await context_.loop.sleep(kRetryDisk);
    if (contribution.step() != id_.step) break;
    written = co_await write_anew(entry);
    note_disk(written);
  }
  entry->finishing = false;
  if (!written) co_return;
  if (contribution.step() == id_.step && root != state_root_) {
    context_.loop.spawn(finish(entry));  // our state changed meanwhile
    co_return;
  }
  entry->held = true;
  if (contribution.step() == id_.step && current(site) == entry.get())
    on_held_(contribution.part());
}

// Nothing of it counts, on disk neither: what comes again may be other chunks.
void Exchange::begin_anew(Entry& entry) {
  const auto refused = entry.contribution;  // jobs on workers may still read it
  entry.contribution =
      std::make_shared<Contribution>(plan_, refused->announcement(), refused->open());
  entry.finishing = false;
  auto file = context_.store.contributions().create(refused->step(), refused->announcement());
  if (file) {
    entry.file = std::move(*file);
  } else {
    note_disk_error(file.error());
    forget(refused->site());
  }
}

Task<Result<void>> Exchange::write_close(EntryPtr entry) {
  Result<void> written;
  auto write = [&written, entry, close = *entry->contribution->close_message()] {
    written = entry->file->add_close(close);
    if (written) written = entry->file->sync();
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), entry->contribution->bytes());
  co_return written;
}

// All of it into a new file: Linux may have dropped what it could not write. The old one goes
// first, so that a full disk needs no more room.
Task<Result<void>> Exchange::write_anew(EntryPtr entry) {
  entry->file.reset();
  Result<std::unique_ptr<ContributionFile>> file = nullptr;
  auto write = [&file, entry, close = *entry->contribution->close_message(),
                &store = context_.store.contributions()] {
    const auto all = [&]() -> Result<std::unique_ptr<ContributionFile>> {
      const auto& contribution = *entry->contribution;
      ISTHMUS_TRY(auto made, store.create(contribution.step(), contribution.announcement()));
      for (std::uint32_t i = 0; i < contribution.plan().chunks(); ++i)
        ISTHMUS_CHECK(made->add(i, contribution.sealed(i)));
      ISTHMUS_CHECK(made->add_close(close));
      ISTHMUS_CHECK(made->sync());
      return made;
    };
    file = all();
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), entry->contribution->bytes());
  if (!file) co_return file.error();
  entry->file = std::move(*file);
  co_return Result<void>();
}

void Exchange::forget(SiteId site) {
  const auto found = entries_.find({id_.step, site});
  if (found == entries_.end()) return;
  for (auto& [id, peer] : context_.peers.all())
    peer.link->withdraw(found->second->contribution->transfer());
  entries_.erase(found);
  asked_.erase(site);
}

}  // namespace isthmus::inter
