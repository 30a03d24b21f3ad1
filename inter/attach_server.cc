#include "inter/attach_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "base/machine_memory.h"
#include "inter/attach_listener.h"
#include "inter/attach_messages.h"
#include "inter/box_runs.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kSliceElements = 4 << 20;  // copied before others have a turn
constexpr std::uint64_t kSliceBytes = 64 << 20;    // of memory reserved likewise
constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

struct Rank {
  enum class InitialState { none, offered, taken };

  AttachConnectionPointer connection;
  std::vector<Box> boxes;
  std::uint64_t elements = 0;
  std::shared_ptr<SharedMemory> memory;  // none until the ranks are complete, or without elements
  bool has_memory = false;
  std::uint64_t state_offset = 0;
  InitialState initial = InitialState::none;
  std::optional<attach::Contribute> contribution;
  std::optional<std::uint64_t> told;  // the publication in its state area, until it took it
  bool state_waits = false;           // for that area
  RankStatus status;
};

}  // namespace

class AttachServer::Server final : public AttachReceiver,
                                   public std::enable_shared_from_this<AttachServer::Server> {
 public:
  Server(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
         std::function<GatewayStatus()> status, AttachOptions options)
      : loop_(loop),
        log_(log),
        path_(std::move(path)),
        outer_(outer),
        gateway_status_(std::move(status)),
        options_(options) {
    if (options_.memory_bytes_max == 0) options_.memory_bytes_max = machine_memory_bytes() / 4 * 3;
  }

  Result<void> listen();
  void stop();
  void publish(const Published& state);
  bool reading() const { return !published_values_.empty(); }
  bool all_took() const {
    return complete_ && published_ && !reading() &&
           std::ranges::none_of(
               ranks_, [](const auto& one) { return one.second.told || one.second.state_waits; });
  }
  void forget();
  void refuse(const Error& why);
  std::vector<RankStatus> rank_status() const;

 private:
  using Self = std::shared_ptr<Server>;

  // Messages.
  void on_message(const AttachConnectionPointer& connection, attach::Kind kind,
                  std::span<const std::byte> body) override;
  void on_closed(const AttachConnectionPointer& connection) override;
  void handle_of_rank(Rank& rank, attach::Kind kind, std::span<const std::byte> body);
  Result<void> on_attach(const AttachConnectionPointer& connection, attach::Attach message);
  Result<void> check_size(const std::vector<TensorInfo>& tensors) const;
  Result<Rank> check_attach(const AttachConnectionPointer& connection,
                            const attach::Attach& message, const ModelLayout& layout);
  void on_initial(Rank& rank);
  void on_contribute(Rank& rank, const attach::Contribute& message);
  void on_took(Rank& rank, const attach::Took& message);
  void on_progress(Rank& rank, const attach::Progress& message);

  // The ranks as one.
  using Era = std::pair<std::uint64_t, std::uint64_t>;
  static Task<void> complete(Self self, std::uint64_t generation);
  Task<Result<void>> give_memory();
  void remove_rank(std::uint32_t number);
  void refuse_all(const Error& why);
  void not_complete();
  void tell_soon();
  static Task<void> tell_all(Self self, Era began);
  void gather_initial_if_all();
  void gather_contribution_if_all();
  static Task<void> gather_initial(Self self, Era began);
  static Task<void> gather_contribution(Self self, Era began, std::uint64_t step,
                                        std::uint64_t tokens);
  // Calls with each run of the rank's boxes and the place in its areas where it stands; `budget`
  // elements are left before others have a turn. False: the era has ended.
  using Copy = std::function<void(const BoxRun& run, std::uint64_t place)>;
  Task<bool> each_run(std::uint32_t number, Era began, std::uint64_t& budget, const Copy& copy);
  // All contribution areas as one canonical vector; nothing when ranks or states changed meanwhile.
  Task<std::optional<std::vector<float>>> gather(Era began);
  // Changes when what a gather is about does.
  Era era() const { return {generation_, publication_}; }

  Loop& loop_;
  EventLog& log_;
  std::string path_;
  OuterSteps& outer_;
  std::function<GatewayStatus()> gateway_status_;
  AttachOptions options_;
  std::unique_ptr<AttachListener> listener_;
  bool stopped_ = false;

  std::optional<Error> refused_;
  std::uint32_t world_ = 0;  // of the ranks that are attached, or were last
  std::string model_;
  ModelLayout layout_;
  std::map<std::uint32_t, Rank> ranks_;
  bool complete_ = false;
  std::uint64_t generation_ = 0;  // counts changes of ranks_
  bool gathering_ = false;

  std::uint64_t publication_ = 0;
  bool published_ = false;  // since the ranks are complete
  attach::State latest_;
  bool telling_ = false;                     // somebody copies the newest state to the ranks
  std::span<const float> published_values_;  // the gateway's; {} once it is free to change them
  std::vector<float> waiting_values_;        // the same, for ranks whose area was not free
};

Result<void> AttachServer::Server::listen() {
  ISTHMUS_TRY(listener_, AttachListener::listen(loop_, log_, path_, *this, options_.listener));
  return {};
}

void AttachServer::Server::stop() {
  stopped_ = true;
  complete_ = false;  // the gateway may be gone already
  forget();
  listener_.reset();
  ranks_.clear();
  ++generation_;
}

// ---- Messages

void AttachServer::Server::on_message(const AttachConnectionPointer& connection, attach::Kind kind,
                                      std::span<const std::byte> body) {
  const Error garbage{ErrorCode::bad_frame, fmt::format("a message of kind {} does not decode",
                                                        static_cast<unsigned>(kind))};
  if (kind == attach::Kind::status) {
    if (!attach::decode<attach::Status>(body)) return connection->refuse(garbage);
    return connection->send(attach::encode(attach::StatusJson{to_json(gateway_status_())}));
  }
  if (kind == attach::Kind::attach) {
    auto message = attach::decode<attach::Attach>(body);
    if (!message) return connection->refuse(garbage);
    if (auto attached = on_attach(connection, std::move(*message)); !attached)
      connection->refuse(attached.error());
    return;
  }
  if (!connection->rank())
    return connection->refuse(Error{ErrorCode::bad_frame, "attach must come first"});
  handle_of_rank(ranks_.at(*connection->rank()), kind, body);
}

void AttachServer::Server::on_closed(const AttachConnectionPointer& connection) {
  if (connection->rank()) remove_rank(*connection->rank());
}

void AttachServer::Server::handle_of_rank(Rank& rank, attach::Kind kind,
                                          std::span<const std::byte> body) {
  const auto with = [&]<class Message>(std::optional<Message> message, auto&& act) {
    if (message) return act(*message);
    rank.connection->refuse(Error{ErrorCode::bad_frame, fmt::format("a message of kind {} does not "
                                                                    "decode",
                                                                    static_cast<unsigned>(kind))});
  };
  switch (kind) {
    case attach::Kind::initial:
      return with(attach::decode<attach::Initial>(body), [&](auto&) { on_initial(rank); });
    case attach::Kind::contribute:
      return with(attach::decode<attach::Contribute>(body),
                  [&](auto& message) { on_contribute(rank, message); });
    case attach::Kind::took:
      return with(attach::decode<attach::Took>(body),
                  [&](auto& message) { on_took(rank, message); });
    case attach::Kind::progress:
      return with(attach::decode<attach::Progress>(body),
                  [&](auto& message) { on_progress(rank, message); });
    case attach::Kind::leaving:
      return with(attach::decode<attach::Leaving>(body), [&](auto&) {
        rank.status.state = "leaving";
        if (complete_) outer_.leaving();
      });
    default:
      ISTHMUS_ASSERT(!"a kind that rank_message_bytes_max() knows and on_message() does not");
  }
}

Result<void> AttachServer::Server::on_attach(const AttachConnectionPointer& connection,
                                             attach::Attach message) {
  if (message.version != attach::kVersion)
    return Error{ErrorCode::unsupported,
                 fmt::format("this rank speaks version {} of the attach protocol, this gateway {}",
                             message.version, attach::kVersion)};
  if (refused_) return *refused_;
  const bool ascending = std::ranges::is_sorted(message.tensors, {}, &TensorInfo::name);
  if (!ascending)
    return Error{ErrorCode::invalid_argument, "tensors must be in ascending order of their names"};
  ISTHMUS_CHECK(check_size(message.tensors));
  ISTHMUS_TRY(ModelLayout layout, ModelLayout::make(message.tensors));
  ISTHMUS_TRY(Rank rank, check_attach(connection, message, layout));
  if (ranks_.empty()) {
    world_ = message.world;
    model_ = std::move(message.model);
    layout_ = std::move(layout);
  }
  connection->set_rank(message.rank);
  ranks_.emplace(message.rank, std::move(rank));
  ++generation_;
  log_.info("rank_attached", {}, {{"rank", message.rank}, {"world", world_}, {"pid", message.pid}});
  if (ranks_.size() == world_) loop_.spawn(complete(shared_from_this(), generation_));
  return {};
}

// The ranks hold all of the model between them, twice: what cannot fit needs no further look, and
// nothing of its size.
Result<void> AttachServer::Server::check_size(const std::vector<TensorInfo>& tensors) const {
  const std::uint64_t elements_max = options_.memory_bytes_max / (2 * sizeof(float));
  std::uint64_t left = elements_max;
  for (const TensorInfo& tensor : tensors) {
    std::uint64_t elements = 1;
    for (const std::int64_t size : tensor.shape.sizes()) {
      if (size <= 0)
        return Error{ErrorCode::invalid_argument,
                     fmt::format("tensor {} has an impossible shape", tensor.name)};
      elements = static_cast<std::uint64_t>(size) > left / elements
                     ? left + 1
                     : elements * static_cast<std::uint64_t>(size);
      if (elements > left)
        return Error{ErrorCode::too_large,
                     fmt::format("the model has more than the {} elements that this gateway may "
                                 "share memory for",
                                 elements_max)};
    }
    left -= elements;
  }
  return {};
}

Result<Rank> AttachServer::Server::check_attach(const AttachConnectionPointer& connection,
                                                const attach::Attach& message,
                                                const ModelLayout& layout) {
  if (connection->rank()) return Error{ErrorCode::bad_frame, "attached twice on one connection"};
  if (message.world == 0 || message.world > options_.world_max || message.rank >= message.world)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of a world of {} (at most {})", message.rank, message.world,
                             options_.world_max)};
  Rank rank;
  for (const Box& box : message.boxes) {
    ISTHMUS_TRY(const std::uint64_t elements, check_box(layout.tensors(), box));
    rank.elements += elements;
    if (rank.elements > layout.elements())
      return Error{ErrorCode::invalid_argument, "the boxes of one rank overlap"};
  }
  // A process that has died may not have been read to its end yet.
  if (const auto old = ranks_.find(message.rank); old != ranks_.end()) {
    const auto held = old->second.connection;
    if (held->is_open() && !held->has_hung_up())
      return Error{ErrorCode::already_exists, fmt::format("rank {} is attached by process {}",
                                                          message.rank, held->peer().pid)};
    held->close();
    remove_rank(message.rank);
  }
  if (!ranks_.empty() &&
      (message.world != world_ || message.model != model_ || layout.tensors() != layout_.tensors()))
    return Error{ErrorCode::mismatch,
                 fmt::format("rank {} has another {} than the ranks that are attached",
                             message.rank, message.world != world_ ? "world size" : "model")};
  rank.connection = connection;
  rank.boxes = message.boxes;
  rank.status.rank = message.rank;
  rank.status.world = message.world;
  rank.status.pid = connection->peer().pid;
  rank.status.state = "attached";
  return rank;
}

void AttachServer::Server::on_progress(Rank& rank, const attach::Progress& message) {
  rank.status.inner_step = message.inner_step;
  rank.status.loss = message.loss;
  rank.status.tokens_per_second = message.tokens_per_second;
  rank.status.state = message.state;
  if (complete_) outer_.progressing();
}

void AttachServer::Server::on_initial(Rank& rank) {
  // A state that has been told answers it.
  if (complete_ && published_) return;
  rank.initial = Rank::InitialState::offered;
  gather_initial_if_all();
}

void AttachServer::Server::on_contribute(Rank& rank, const attach::Contribute& message) {
  // Overtaken by a state, which answers it.
  if (!complete_ || !published_ || message.publication != publication_) return;
  if (rank.contribution)
    return rank.connection->refuse(
        Error{ErrorCode::bad_frame, "a second contribution to one state"});
  rank.contribution = message;
  gather_contribution_if_all();
}

void AttachServer::Server::on_took(Rank& rank, const attach::Took& message) {
  if (rank.told != message.publication) return;
  rank.told.reset();
  if (rank.state_waits) tell_soon();
}

// ---- The ranks as one

Task<void> AttachServer::Server::complete(Self self, std::uint64_t generation) {
  if (self->stopped_ || self->generation_ != generation) co_return;
  std::vector<Box> boxes;
  for (const auto& [number, rank] : self->ranks_)
    boxes.insert(boxes.end(), rank.boxes.begin(), rank.boxes.end());
  auto ready = self->layout_.check_cover(boxes);
  if (ready) {
    auto given = co_await self->give_memory();
    ready = std::move(given);
  }
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (!ready) {
    self->refuse_all(ready.error());
    co_return;
  }
  self->complete_ = true;
  self->published_ = false;
  self->log_.info("ranks_complete", {},
                  {{"world", self->world_}, {"elements", self->layout_.elements()}});
  const auto accepted = self->outer_.attached(self->layout_, self->model_);
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (!accepted)
    self->refuse_all(accepted.error());
  else if (!self->published_)
    self->gather_initial_if_all();
}

// A contribution area and a state area for each rank that has none yet:
//
//   0                       contribution   whole pages
//   state_offset            state          whole pages
Task<Result<void>> AttachServer::Server::give_memory() {
  const std::uint64_t generation = generation_;
  std::uint64_t needed = 0;
  for (const auto& [number, rank] : ranks_)
    needed += 2 * whole_pages(rank.elements * sizeof(float));
  if (needed > options_.memory_bytes_max)
    co_return Error{ErrorCode::too_large,
                    fmt::format("the ranks need {} bytes of shared memory, the limit is {}", needed,
                                options_.memory_bytes_max)};
  for (std::uint32_t number = 0; number < world_; ++number) {
    // Looked up anew: ranks may come and go while others have their turn.
    if (generation_ != generation) co_return Result<void>();
    Rank& rank = ranks_.at(number);
    if (rank.has_memory) continue;
    attach::Memory message;
    message.elements = rank.elements;
    message.state_offset = whole_pages(rank.elements * sizeof(float));
    message.bytes = 2 * message.state_offset;
    std::shared_ptr<SharedMemory> memory;  // shared: a queue keeps it until the descriptor has left
    if (rank.elements > 0) {
      auto made = SharedMemory::make(message.bytes);
      if (!made) co_return std::move(made).error();
      memory = std::make_shared<SharedMemory>(std::move(*made));
      for (std::uint64_t first = 0; first < message.bytes; first += kSliceBytes) {
        auto reserved = memory->reserve(first, std::min(kSliceBytes, message.bytes - first));
        if (!reserved) co_return std::move(reserved).error();
        if (first + kSliceBytes < message.bytes) co_await loop_.sleep(0);
        if (stopped_ || generation_ != generation) co_return Result<void>();
      }
    }
    rank.memory = memory;
    rank.has_memory = true;
    rank.state_offset = message.state_offset;
    rank.connection->send(attach::encode(message), std::move(memory));
  }
  co_return Result<void>();
}

void AttachServer::Server::remove_rank(std::uint32_t number) {
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return;
  log_.info("rank_gone", {},
            {{"rank", number}, {"pid", static_cast<std::int64_t>(found->second.status.pid)}});
  found->second.connection->set_rank({});
  ranks_.erase(found);
  ++generation_;
  not_complete();
  // The others are told a state when the ranks are complete again, and go on from there.
  for (auto& [other, rank] : ranks_) {
    rank.contribution.reset();
    rank.state_waits = false;
  }
  forget();
}

void AttachServer::Server::refuse_all(const Error& why) {
  auto ranks = std::move(ranks_);
  ranks_.clear();
  ++generation_;
  forget();
  for (auto& [number, rank] : ranks) {
    rank.connection->refuse(why);
    rank.connection->set_rank({});
  }
  not_complete();
}

void AttachServer::Server::not_complete() {
  if (std::exchange(complete_, false)) outer_.detached();
}

void AttachServer::Server::refuse(const Error& why) {
  refused_ = why;
  refuse_all(why);
}

std::vector<RankStatus> AttachServer::Server::rank_status() const {
  std::vector<RankStatus> all;
  for (std::uint32_t number = 0; number < world_; ++number) {
    const auto found = ranks_.find(number);
    if (found != ranks_.end())
      all.push_back(found->second.status);
    else
      all.push_back({.rank = number,
                     .world = world_,
                     .pid = 0,
                     .inner_step = 0,
                     .loss = 0,
                     .tokens_per_second = 0,
                     .state = "not attached"});
  }
  return all;
}

void AttachServer::Server::publish(const Published& state) {
  ++publication_;
  if (!complete_) return;
  ISTHMUS_ASSERT(state.parameters.size() == layout_.elements());
  published_ = true;
  latest_.publication = publication_;
  latest_.step = state.step;
  latest_.record = state.record;
  latest_.merge = state.merge;
  latest_.final_step = state.final_step;
  latest_.contribution_open = state.contribution_open;
  latest_.contributed = state.contributed;
  for (auto& [number, rank] : ranks_) {
    rank.contribution.reset();
    if (rank.initial == Rank::InitialState::offered) rank.initial = Rank::InitialState::none;
    rank.state_waits = true;
  }
  telling_ = false;
  waiting_values_ = {};
  published_values_ = state.parameters;
  tell_soon();
}

// What is being told ends unsaid; the ranks hear the next state.
void AttachServer::Server::forget() {
  ++publication_;
  telling_ = false;
  published_values_ = {};
  waiting_values_ = {};
}

// Not within the call: a state must not overtake the answer to the contribution that it follows
// from.
void AttachServer::Server::tell_soon() {
  if (std::exchange(telling_, true)) return;
  loop_.post(
      [self = shared_from_this(), began = era()] { self->loop_.spawn(tell_all(self, began)); });
}

// Copies the newest state to every rank whose area is free, then what the others will need, so that
// the gateway may go on.
Task<void> AttachServer::Server::tell_all(Self self, Era began) {
  std::uint64_t budget = kSliceElements;
  while (!self->stopped_ && self->era() == began) {
    const auto next = std::ranges::find_if(self->ranks_, [](const auto& entry) {
      return entry.second.state_waits && !entry.second.told;
    });
    if (next != self->ranks_.end()) {
      const auto number = next->first;
      const Copy copy = [&](const BoxRun& run, std::uint64_t place) {
        const Rank& rank = self->ranks_.at(number);
        const auto values = self->reading() ? self->published_values_
                                            : std::span<const float>(self->waiting_values_);
        std::ranges::copy(values.subspan(run.canonical, run.count),
                          rank.memory->floats(rank.state_offset, rank.elements)
                              .subspan(place, run.count)
                              .begin());
      };
      const bool all = co_await self->each_run(number, began, budget, copy);
      if (!all) co_return;
      Rank& rank = self->ranks_.at(number);
      rank.state_waits = false;
      rank.told = self->latest_.publication;
      rank.connection->send(attach::encode(self->latest_));
      continue;
    }
    const bool waits = std::ranges::any_of(
        self->ranks_, [](const auto& entry) { return entry.second.state_waits; });
    if (!waits) self->waiting_values_ = {};
    if (waits && self->reading()) {
      std::vector<float> kept;
      kept.reserve(self->published_values_.size());
      while (kept.size() < self->published_values_.size()) {
        const auto rest = self->published_values_.subspan(kept.size());
        const auto slice = rest.first(std::min<std::uint64_t>(rest.size(), kSliceElements));
        kept.insert(kept.end(), slice.begin(), slice.end());
        co_await self->loop_.sleep(0);
        if (self->stopped_ || self->era() != began) co_return;
      }
      self->waiting_values_ = std::move(kept);
      self->published_values_ = {};
      continue;  // some may have taken theirs meanwhile
    }
    self->published_values_ = {};
    self->telling_ = false;
    co_return;
  }
}

void AttachServer::Server::gather_initial_if_all() {
  using enum Rank::InitialState;
  if (!complete_ || published_ || gathering_) return;
  bool all = true;
  bool any = false;
  for (const auto& [number, rank] : ranks_) {
    if (rank.initial == none) return;
    all &= rank.initial == offered;
    any |= rank.initial == offered;
  }
  if (!any) return;
  if (all) {
    gathering_ = true;
    return loop_.spawn(gather_initial(shared_from_this(), era()));
  }
  // Some ranks came later than those whose parameters the gateway has.
  for (auto& [number, rank] : ranks_) {
    if (rank.initial == offered) rank.connection->send(attach::encode(attach::Taken{0}));
    rank.initial = taken;
  }
}

Task<void> AttachServer::Server::gather_initial(Self self, Era began) {
  auto parameters = co_await self->gather(began);
  if (!parameters) co_return;
  for (auto& [number, rank] : self->ranks_) {
    rank.initial = Rank::InitialState::taken;
    rank.connection->send(attach::encode(attach::Taken{0}));
  }
  self->outer_.offer_initial(std::move(*parameters));
}

void AttachServer::Server::gather_contribution_if_all() {
  if (!complete_ || gathering_) return;
  std::uint64_t tokens = 0;
  const auto& first = ranks_.begin()->second.contribution;
  for (const auto& [number, rank] : ranks_) {
    if (!rank.contribution) return;
    if (rank.contribution->step != first->step)
      return refuse_all({ErrorCode::mismatch, "the ranks contributed to different steps"});
    if (rank.contribution->tokens > ~tokens)
      return refuse_all({ErrorCode::invalid_argument, "too many tokens"});
    tokens += rank.contribution->tokens;
  }
  gathering_ = true;
  loop_.spawn(gather_contribution(shared_from_this(), era(), first->step, tokens));
}

Task<void> AttachServer::Server::gather_contribution(Self self, Era began, std::uint64_t step,
                                                     std::uint64_t tokens) {
  auto parameters = co_await self->gather(began);
  if (!parameters) co_return;
  const std::uint64_t generation = self->generation_;
  const auto accepted = self->outer_.contribute(step, std::move(*parameters), tokens);
  if (self->stopped_ || self->generation_ != generation) co_return;
  if (accepted) {
    for (auto& [number, rank] : self->ranks_)
      rank.connection->send(attach::encode(attach::Taken{step}));
  } else if (accepted.error().code != ErrorCode::mismatch) {
    self->refuse_all(accepted.error());
    co_return;
  } else {
    // Late: the state of that step is on its way, and says so by coming without an answer.
    self->log_.info("contribution_not_taken", {{}, static_cast<std::int64_t>(step)},
                    {{"reason", accepted.error().text()}});
  }
}

Task<bool> AttachServer::Server::each_run(std::uint32_t number, Era began, std::uint64_t& budget,
                                          const Copy& copy) {
  std::uint64_t before = 0;  // elements of the boxes before this one
  // The rank is looked up anew after each turn of others: one that goes ends the era.
  for (std::size_t b = 0; b < ranks_.at(number).boxes.size(); ++b) {
    BoxRuns runs(layout_, ranks_.at(number).boxes[b]);
    std::uint64_t copied = 0;
    for (;;) {
      const auto run = runs.next(budget);
      if (!run) break;
      copy(*run, before + run->dense);
      copied += run->count;
      budget -= run->count;
      if (budget > 0) continue;
      co_await loop_.sleep(0);
      budget = kSliceElements;
      if (stopped_ || era() != began) co_return false;
    }
    before += copied;
  }
  co_return true;
}

Task<std::optional<std::vector<float>>> AttachServer::Server::gather(Era began) {
  std::vector<float> whole;
  whole.reserve(layout_.elements());
  std::uint64_t budget = kSliceElements;
  bool current = !stopped_ && era() == began;
  while (current && whole.size() < layout_.elements()) {
    whole.resize(std::min(layout_.elements(), whole.size() + kSliceElements));
    if (whole.size() < layout_.elements()) co_await loop_.sleep(0);
    current = !stopped_ && era() == began;
  }
  for (std::uint32_t number = 0; current && number < world_; ++number) {
    const Copy copy = [&](const BoxRun& run, std::uint64_t place) {
      const Rank& rank = ranks_.at(number);
      std::ranges::copy(rank.memory->floats(0, rank.elements).subspan(place, run.count),
                        whole.begin() + static_cast<std::ptrdiff_t>(run.canonical));
    };
    current = co_await each_run(number, began, budget, copy);
  }
  gathering_ = false;
  if (current) co_return std::optional(std::move(whole));
  // What came meanwhile has waited for this.
  if (!stopped_ && published_)
    gather_contribution_if_all();
  else if (!stopped_)
    gather_initial_if_all();
  co_return std::nullopt;
}

// ----

AttachServer::AttachServer(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
                           std::function<GatewayStatus()> status, AttachOptions options)
    : server_(std::make_shared<Server>(loop, log, std::move(path), outer, std::move(status),
                                       options)) {}
AttachServer::~AttachServer() { server_->stop(); }
Result<void> AttachServer::listen() { return server_->listen(); }
void AttachServer::publish(const Published& state) { server_->publish(state); }
bool AttachServer::reading() const { return server_->reading(); }
bool AttachServer::all_took() const { return server_->all_took(); }
void AttachServer::forget() { server_->forget(); }
void AttachServer::refuse(const Error& why) { server_->refuse(why); }
std::vector<RankStatus> AttachServer::status() const { return server_->rank_status(); }

}  // namespace isthmus::inter
