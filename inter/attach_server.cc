#include "inter/attach_server.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/assert.h"
#include "base/machine_memory.h"
#include "inter/attached_ranks.h"

namespace isthmus::inter {
namespace {

constexpr std::uint64_t kSliceBytes = 64 << 20;  // of memory reserved before others have a turn
constexpr std::uint64_t kPageBytes = 4096;

std::uint64_t whole_pages(std::uint64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

AttachServer::Server::Server(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
                             std::function<GatewayStatus()> status, AttachOptions options)
    : loop_(loop),
      log_(log),
      path_(std::move(path)),
      outer_(outer),
      gateway_status_(std::move(status)),
      options_(options) {
  if (options_.memory_bytes_max == 0) options_.memory_bytes_max = machine_memory_bytes() / 4 * 3;
}

Result<void> AttachServer::Server::listen() {
  ISTHMUS_TRY(listener_, AttachListener::listen(loop_, log_, path_, *this, options_.listener));
  return {};
}

void AttachServer::Server::stop() {
  stopped_ = true;
  complete_ = false;  // the gateway may be gone already
  forget();
  listener_.reset();
  link_test_askers_.clear();
  ranks_.clear();
  change_generation();
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
  if (kind == attach::Kind::link_test) {
    const auto wish = attach::decode<attach::LinkTest>(body);
    if (!wish) return connection->refuse(garbage);
    return on_link_test(connection, *wish);
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
  forget_link_test(connection);
}

// A test that nobody asks about any more ends.
void AttachServer::Server::forget_link_test(const AttachConnectionPointer& connection) {
  const auto asker = link_test_askers_.find(connection);
  if (asker == link_test_askers_.end()) return;
  const auto number = asker->second;
  link_test_askers_.erase(asker);
  if (std::ranges::none_of(link_test_askers_,
                           [&](const auto& other) { return other.second == number; }))
    stop_link_test_(number);
}

void AttachServer::Server::on_link_test(const AttachConnectionPointer& connection,
                                        const attach::LinkTest& wish) {
  const auto json =
      link_test_ ? link_test_(wish) : Error{ErrorCode::unsupported, "this gateway tests no links"};
  if (!json) return connection->decline(json.error());
  if (const auto before = link_test_askers_.find(connection);
      before != link_test_askers_.end() && before->second != wish.number)
    forget_link_test(connection);
  link_test_askers_[connection] = wish.number;
  connection->send(attach::encode(attach::LinkTestJson{*json}));
}

void AttachServer::Server::handle_of_rank(AttachedRank& rank, attach::Kind kind,
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
  ISTHMUS_TRY(ModelLayout layout, ModelLayout::make(message.tensors, message.model_settings));
  ISTHMUS_TRY(AttachedRank rank, check_attach(connection, message, layout));
  if (ranks_.empty()) {
    world_ = message.world;
    layout_ = std::move(layout);
  }
  connection->set_rank(message.rank);
  ranks_.emplace(message.rank, std::move(rank));
  change_generation();
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

Result<AttachedRank> AttachServer::Server::check_attach(const AttachConnectionPointer& connection,
                                                        const attach::Attach& message,
                                                        const ModelLayout& layout) {
  if (connection->rank()) return Error{ErrorCode::bad_frame, "attached twice on one connection"};
  if (message.world == 0 || message.world > options_.world_max || message.rank >= message.world)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of a world of {} (at most {})", message.rank, message.world,
                             options_.world_max)};
  AttachedRank rank;
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
  if (!ranks_.empty() && (message.world != world_ || message.model_settings != layout_.settings() ||
                          layout.tensors() != layout_.tensors()))
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

void AttachServer::Server::on_progress(AttachedRank& rank, const attach::Progress& message) {
  rank.status.inner_step = message.inner_step;
  rank.status.loss = message.loss;
  rank.status.tokens_per_second = message.tokens_per_second;
  rank.status.state = message.state;
  if (complete_) outer_.progressing();
}

void AttachServer::Server::on_initial(AttachedRank& rank) {
  // A state that has been told answers it.
  if (complete_ && published_) return;
  rank.initial = AttachedRank::InitialState::offered;
  gather_initial_if_all();
}

void AttachServer::Server::on_contribute(AttachedRank& rank, const attach::Contribute& message) {
  // Overtaken by a state, which answers it.
  if (!complete_ || !published_ || message.publication != publication_) return;
  if (rank.contribution)
    return rank.connection->refuse(
        Error{ErrorCode::bad_frame, "a second contribution to one state"});
  rank.contribution = message;
  gather_contribution_if_all();
}

void AttachServer::Server::on_took(AttachedRank& rank, const attach::Took& message) {
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
  const auto accepted = self->outer_.attached(self->layout_);
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
    AttachedRank& rank = ranks_.at(number);
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
  change_generation();
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
  change_generation();
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

// ---- What others see of it

AttachServer::AttachServer(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
                           std::function<GatewayStatus()> status, AttachOptions options)
    : server_(std::make_shared<Server>(loop, log, std::move(path), outer, std::move(status),
                                       options)) {}
AttachServer::~AttachServer() { server_->stop(); }
void AttachServer::serve_link_tests(
    std::function<Result<std::string>(const attach::LinkTest&)> test,
    std::function<void(std::uint64_t number)> stop) {
  server_->serve_link_tests(std::move(test), std::move(stop));
}
Result<void> AttachServer::listen() { return server_->listen(); }
void AttachServer::publish(const Published& state) { server_->publish(state); }
std::shared_ptr<StateDraft> AttachServer::draft() { return server_->draft(); }
bool AttachServer::reading() const { return server_->reading(); }
bool AttachServer::all_took() const { return server_->all_took(); }
void AttachServer::forget() { server_->forget(); }
void AttachServer::refuse(const Error& why) { server_->refuse(why); }
std::vector<RankStatus> AttachServer::status() const { return server_->rank_status(); }

}  // namespace isthmus::inter
