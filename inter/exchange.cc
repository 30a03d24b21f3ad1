#include "inter/exchange.h"

#include <algorithm>

#include "inter/disk_jobs.h"
#include "inter/zstd_choice.h"

namespace isthmus::inter {
namespace {

constexpr int kCodedAtOnce = 8;  // groups of chunks, at least
constexpr Nanoseconds kAskedLately = 10 * kSecond;

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
  keep_from_ = keep_from;
  forget_old(id.step);
  // What did not fit our state may fit it now.
  if (base_changed)
    for (const auto& [key, entry] : entries_)
      if (key.first == id_.step && entry->contribution->complete() && !entry->held)
        context_.loop.spawn(finish(entry));
}

// What is older than must be kept, but for what was asked for lately, of few steps.
void Exchange::forget_old(std::uint64_t but_of) {
  const auto old = [&](const auto& item) {
    return item.first.first < keep_from_ && item.first.first != but_of;
  };
  std::map<std::uint64_t, Nanoseconds> asked;  // of a step, the last time
  for (const auto& item : entries_)
    if (const auto& at = item.second->asked_at;
        old(item) && at && context_.loop.now() - *at < kAskedLately)
      asked[item.first.first] = std::max(asked[item.first.first], *at);
  while (asked.size() + (but_of < keep_from_ ? 1 : 0) > kOldSteps)
    asked.erase(std::ranges::min_element(
        asked, [](const auto& a, const auto& b) { return a.second < b.second; }));
  std::vector<std::shared_ptr<ContributionFile>> left;
  std::erase_if(entries_, [&](const auto& item) {
    const auto& [key, entry] = item;
    if (!old(item) || (entry->asked_at && asked.contains(key.first))) return false;
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entry->contribution->transfer());
    if (entry->file) left.push_back(entry->file);
    return true;
  });
  // The last one to close a file that was removed waits for the file system to free its blocks.
  if (left.empty()) return;
  auto close = [left = std::move(left)]() mutable { left.clear(); };
  context_.workers.submit(
      std::move(close), [] {}, 0, Urgency::disk);
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
         context_.loop.now() - entry->last_arrival < fetch_patience(site);
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
                                            std::shared_ptr<const ContributedValues> parameters,
                                            std::span<const float> feedback, std::uint64_t tokens,
                                            LargeVector<float> memory) {
  const auto attempt = (context_.boot << 32) + ++attempts_;
  const Open open = plan_->announce(id_, tokens, parent_, attempt);
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
  auto feedback_file = context_.store.begin_feedback(agreed.size());
  if (!feedback_file) {
    note_disk_error(feedback_file.error());
    co_return feedback_file.error();
  }
  const auto residual_file = std::shared_ptr<FeedbackFile>(std::move(*feedback_file));
  const bool again = entries_.count({step, context_.self}) > 0;
  if (again)
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entries_[{step, context_.self}]->contribution->transfer());
  entries_[{step, context_.self}] = entry;
  contributing_ = true;
  for (auto* peer : context_.peers.working_on(step)) offer(*peer->link, entry->contribution);

  Feedback result{.step = step, .root = {}, .tokens = tokens, .residual = std::move(memory)};
  result.residual.resize(agreed.size());
  const bool zstd = packing_pays();
  // One chunk is always packed, a different one each time: what that gained decides about the next.
  const auto sample = static_cast<std::uint32_t>(step % plan_->chunks());
  auto made = std::make_shared<std::vector<CheckedChunk>>(plan_->chunks());  // with the jobs
  const auto transfer = entry->contribution->transfer();
  auto code = [=, this, values = std::move(parameters),
               &result](std::uint32_t group) -> Result<void> {
    const auto first = group * kSealedTogether;
    std::vector<PackedChunk> packed;
    for (auto i = first; i < std::min(first + kSealedTogether, plan_->chunks()); ++i) {
      ISTHMUS_TRY(const auto unsealed,
                  code_chunk(*plan_, i, agreed, feedback, *values, result.residual));
      (*made)[i].coded = unsealed.coded();
      packed.push_back(pack_chunk(*plan_, transfer, i, unsealed, zstd || i == sample));
    }
    auto sealed = seal_chunks(context_.signer, packed);
    for (std::size_t i = 0; i < sealed.size(); ++i)
      (*made)[first + i].sealed = std::move(sealed[i]);
    return {};
  };
  DiskJobs writes(context_.workers, context_.loop);
  std::uint32_t coded = 0;  // all chunks before this one
  std::uint64_t coded_elements = 0;
  std::uint32_t slabs = 0;  // of the residual, that are being written
  const auto take_chunk = [=, this](std::uint32_t i) {
    auto chunk = std::exchange((*made)[i], {});
    if (i == sample)
      zstd_saves_ = 1 - static_cast<double>(chunk.sealed.bytes.size()) /
                            static_cast<double>(kSealBytes + compress::ZstdStage::kTagBytes +
                                                plan_->codec_bytes(i));
    entry->contribution->add(i, std::move(chunk.sealed), std::move(chunk.coded));
    if (step == id_.step) on_chunk_added_(i);
  };
  const auto offer_group = [=, this, &writes, &coded, &coded_elements, &slabs,
                            &result](std::uint32_t group) {
    const auto first = group * kSealedTogether;
    std::vector<StoredChunk> to_write;
    std::uint64_t bytes = 0;
    for (auto i = first; i < std::min(first + kSealedTogether, plan_->chunks()); ++i) {
      take_chunk(i);
      to_write.emplace_back(i, entry->contribution->sealed(i));
      bytes += to_write.back().second.size();
    }
    writes.submit(
        [file = entry->file, to_write = std::move(to_write)] { return file->add(to_write); },
        bytes);
    for (auto& [site, peer] : context_.peers.all())
      if (peer.link->up()) peer.link->poke();
    for (; coded < plan_->chunks() && entry->contribution->has(coded); ++coded)
      coded_elements += plan_->elements(coded);
    const auto whole = coded == plan_->chunks() ? residual_file->slabs()
                                                : coded_elements / FeedbackFile::kSlabElements;
    for (; slabs < whole; ++slabs)
      writes.submit(
          [residual_file, slab = slabs, residual = std::span<const float>(result.residual)] {
            return residual_file->write_slab(slab, residual);
          },
          sizeof(float) * FeedbackFile::kSlabElements);
  };
  // Before what arrives from others, which it keeps waiting for a moment only: lines are full
  // sooner.
  auto all_coded = co_await run_all(
      context_.workers, context_.loop, plan_->groups(),
      12 * kSealedTogether * plan_->chunk_elements(), std::move(code), offer_group,
      static_cast<std::uint32_t>(std::max(kCodedAtOnce, 2 * context_.workers.parallel())));
  const auto take_back = [this, entry, step] {
    contributing_ = false;
    for (auto& [site, peer] : context_.peers.all())
      peer.link->withdraw(entry->contribution->transfer());
    entries_.erase({step, context_.self});
  };
  // In any case: the jobs write what is ours.
  auto all_written = co_await writes.all_done();
  if (all_coded) all_coded = std::move(all_written);
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
  auto write = [this, &result, &written, entry, message, residual_file] {
    written = residual_file->finish(result.step, result.root, result.tokens);
    context_.at_point("feedback_written", result.step);
    if (written) written = entry->file->add_close(message);
    if (written) written = entry->file->sync();
    if (written) context_.store.settle_feedback(result.step, result.root);
  };
  co_await run_on(context_.workers, context_.loop, std::move(write), 4096, Urgency::disk);
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
                    {{"tokens", tokens}, {"bytes", entry->contribution->bytes()}, {"zstd", zstd}});
  co_return result;
}

bool Exchange::packing_pays() const {
  ZstdFacts facts{.bytes = plan_->bytes_max(),
                  .slowest = {},
                  .saves = zstd_saves_,
                  .parallel = context_.workers.parallel()};
  for (const auto& [site, peer] : context_.peers.all()) {
    if (!peer.link->up()) continue;
    const auto& flow = peer.link->last_flow();
    if (!flow) {  // one whose line is not known stands for all
      facts.slowest.reset();
      break;
    }
    if (!facts.slowest || flow->bytes_per_second < facts.slowest->bytes_per_second)
      facts.slowest = flow;
  }
  return zstd_pays(facts);
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

}  // namespace isthmus::inter
