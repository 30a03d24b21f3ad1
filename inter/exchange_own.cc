// The contribution of this site: coded, sealed, written and offered while it is being made.
#include <algorithm>
#include <utility>

#include "inter/disk_jobs.h"
#include "inter/exchange.h"
#include "inter/zstd_choice.h"

namespace isthmus::inter {
namespace {

constexpr int kCodedAtOnce = 8;  // groups of chunks, at least

// Workers code the chunks and seal them, a group at a time; the owner takes each group when it is
// there and gives it to the disk, with what of the residual is there without a gap.
class ContributionMaker {
 public:
  // One chunk is always packed: what that gained decides about the next contribution.
  struct Packing {
    bool all = false;
    std::uint32_t sample = 0;
  };
  ContributionMaker(const ChunkPlan& plan, const security::Signer& signer, Packing packing,
                    std::shared_ptr<Contribution> contribution,
                    std::shared_ptr<ContributionFile> file,
                    std::shared_ptr<FeedbackFile> residual_file, std::span<float> residual)
      : plan_(plan),
        signer_(signer),
        packing_(packing),
        contribution_(std::move(contribution)),
        file_(std::move(file)),
        residual_file_(std::move(residual_file)),
        residual_(residual),
        made_(plan.chunks()) {}

  // Any thread, each group once.
  Result<void> code(std::uint32_t group, std::span<const float> agreed,
                    std::span<const float> feedback, const ContributedValues& parameters) {
    std::vector<PackedChunk> packed;
    for (auto i = first_of(group); i < end_of(group); ++i) {
      ISTHMUS_TRY(const auto unsealed,
                  code_chunk(plan_, i, agreed, feedback, parameters, residual_));
      made_[i].coded = unsealed.coded();
      packed.push_back(pack_chunk(plan_, contribution_->transfer(), i, unsealed,
                                  packing_.all || i == packing_.sample));
    }
    auto sealed = seal_chunks(signer_, packed);
    for (std::size_t i = 0; i < sealed.size(); ++i)
      made_[first_of(group) + i].sealed = std::move(sealed[i]);
    return {};
  }

  // The owner, once the group is coded.
  void take(std::uint32_t group, DiskJobs& writes,
            const std::function<void(std::uint32_t)>& on_chunk_added) {
    std::vector<StoredChunk> to_write;
    std::uint64_t bytes = 0;
    for (auto i = first_of(group); i < end_of(group); ++i) {
      auto chunk = std::exchange(made_[i], {});
      if (i == packing_.sample) zstd_saves_ = saved(i, chunk.sealed.bytes.size());
      contribution_->add(i, std::move(chunk.sealed), std::move(chunk.coded));
      on_chunk_added(i);
      to_write.emplace_back(i, contribution_->sealed(i));
      bytes += to_write.back().second.size();
    }
    writes.submit([file = file_, to_write = std::move(to_write)] { return file->add(to_write); },
                  bytes);
    write_residual(writes);
  }

  std::optional<double> zstd_saves() const { return zstd_saves_; }  // of the bytes of the sample

 private:
  std::uint32_t first_of(std::uint32_t group) const { return group * kSealedTogether; }
  std::uint32_t end_of(std::uint32_t group) const {
    return std::min(first_of(group) + kSealedTogether, plan_.chunks());
  }

  double saved(std::uint32_t chunk, std::size_t bytes) const {
    const auto unpacked = kSealBytes + compress::ZstdStage::kTagBytes + plan_.codec_bytes(chunk);
    return 1 - static_cast<double>(bytes) / static_cast<double>(unpacked);
  }

  void write_residual(DiskJobs& writes) {
    for (; coded_ < plan_.chunks() && contribution_->has(coded_); ++coded_)
      coded_elements_ += plan_.elements(coded_);
    const auto whole = coded_ == plan_.chunks() ? residual_file_->slabs()
                                                : coded_elements_ / FeedbackFile::kSlabElements;
    for (; slabs_ < whole; ++slabs_)
      writes.submit(
          [file = residual_file_, slab = slabs_, residual = std::span<const float>(residual_)] {
            return file->write_slab(slab, residual);
          },
          sizeof(float) * FeedbackFile::kSlabElements);
  }

  const ChunkPlan& plan_;
  const security::Signer& signer_;
  const Packing packing_;
  const std::shared_ptr<Contribution> contribution_;
  const std::shared_ptr<ContributionFile> file_;
  const std::shared_ptr<FeedbackFile> residual_file_;
  const std::span<float> residual_;
  std::vector<CheckedChunk> made_;  // from the workers to the owner
  std::uint32_t coded_ = 0;         // all chunks before this one
  std::uint64_t coded_elements_ = 0;
  std::uint32_t slabs_ = 0;  // of the residual, that are being written
  std::optional<double> zstd_saves_;
};

}  // namespace

Task<Result<Feedback>> Exchange::contribute(std::span<const float> agreed,
                                            std::shared_ptr<const ContributedValues> parameters,
                                            std::span<const float> feedback, std::uint64_t tokens,
                                            LargeVector<float> memory) {
  const auto step = id_.step;
  const auto state_root_of_base = state_root_;
  // After one that came to nothing, most likely on a full disk, peers are not to begin, receive and
  // drop another one, and another one: they are offered what is written.
  const bool offer_at_once = std::exchange(offers_at_once_, false);
  const Open open = plan_->announce(id_, tokens, parent_, (context_.boot << 32) + ++attempts_);
  auto begun = begin_own(open);
  if (!begun) {
    note_disk_error(begun.error());
    co_return begun.error();
  }
  const auto entry = std::move(*begun);
  auto feedback_file = context_.store.begin_feedback(agreed.size());
  if (!feedback_file) {
    note_disk_error(feedback_file.error());
    co_return feedback_file.error();
  }
  const auto residual_file = std::shared_ptr<FeedbackFile>(std::move(*feedback_file));
  forget(step, context_.self);  // an earlier attempt, if there was one
  contributing_ = true;
  if (offer_at_once) offer_own(entry);

  Feedback result{.step = step, .root = {}, .tokens = tokens, .residual = std::move(memory)};
  result.residual.resize(agreed.size());
  const bool zstd = packing_pays();
  ContributionMaker maker(
      *plan_, context_.signer,
      {.all = zstd, .sample = static_cast<std::uint32_t>(step % plan_->chunks())},
      entry->contribution, entry->file, residual_file, result.residual);
  DiskJobs writes(context_.workers, context_.loop);
  const auto take_group = [this, &maker, &writes, step](std::uint32_t group) -> Result<void> {
    maker.take(group, writes, [this, step](std::uint32_t chunk) {
      if (step == id_.step) on_chunk_added_(chunk);
    });
    for (auto& [site, peer] : context_.peers.all())
      if (peer.link->up()) peer.link->poke();
    return writes.so_far();  // of what does not fit on the disk no more is coded
  };
  auto code = [&maker, agreed, feedback, values = std::move(parameters)](std::uint32_t group) {
    return maker.code(group, agreed, feedback, *values);
  };
  // Before what arrives from others, which it keeps waiting for a moment only: lines are full
  // sooner.
  auto coded = co_await run_all(
      context_.workers, context_.loop, plan_->groups(),
      12 * kSealedTogether * plan_->chunk_elements(), std::move(code), take_group,
      static_cast<std::uint32_t>(std::max(kCodedAtOnce, 2 * context_.workers.parallel())));
  // In any case: the jobs write what is ours.
  auto done = co_await writes.all_done();
  if (!coded) done = std::move(coded);
  if (done && !offer_at_once) offer_own(entry);
  if (maker.zstd_saves()) zstd_saves_ = maker.zstd_saves();

  Signed message;
  Close close{};
  if (done) {
    result.root = entry->contribution->root();
    context_.at_point("before_close", step);
    close = {.id = open.id,
             .transfer = entry->contribution->transfer(),
             .root = result.root,
             .bytes = entry->contribution->bytes(),
             .tokens = tokens,
             .base = open.base,
             .state_root = state_root_of_base};
    message = sign(context_.signer, context_.self, MessageType::close, encode(close));
    // What was cut off first, then the close: whoever finds the close finds the feedback too.
    auto write = [this, &result, &done, &message, entry, residual_file] {
      done = residual_file->finish(result.step, result.root, result.tokens);
      context_.at_point("feedback_written", result.step);
      if (done) done = entry->file->add_close(message);
      if (done) done = entry->file->sync();
      if (done) context_.store.settle_feedback(result.step, result.root);
    };
    co_await run_on(context_.workers, context_.loop, std::move(write), 4096, Urgency::disk);
  }
  note_disk(done);
  contributing_ = false;
  if (!done) {
    forget(step, context_.self);
    co_return done.error();
  }
  offers_at_once_ = true;
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

Result<Exchange::EntryPtr> Exchange::begin_own(const Open& open) {
  auto entry = std::make_shared<Entry>();
  entry->contribution = std::make_shared<Contribution>(
      plan_, sign(context_.signer, context_.self, MessageType::open, encode(open)), open);
  ISTHMUS_TRY(entry->file, context_.store.contributions().create(
                               open.id.step, entry->contribution->announcement()));
  return entry;
}

void Exchange::offer_own(const EntryPtr& entry) {
  const auto step = entry->contribution->step();
  place(entry);
  for (auto* peer : context_.peers.working_on(step)) offer(*peer->link, *entry);
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
  co_await run_on(context_.workers, context_.loop, std::move(write), 4096, Urgency::disk);
  if (!written) co_return written;
  entry->contribution->set_close(message, close);
  for (auto* peer : context_.peers.working_on(close.id.step)) send_signed(*peer->link, message);
  on_held_(entry->contribution->part());
  co_return Result<void>();
}

}  // namespace isthmus::inter
