#include "inter/attach_client.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/copy_to.h"
#include "inter/attach_messages.h"
#include "inter/box_runs.h"
#include "inter/local_socket.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kSendTimeout =
    10 * kSecond;  // messages are short: a gateway that lives reads
constexpr int kRetryMs = 50;

// Worth another attempt while a rank waits for its gateway.
bool may_come_yet(ErrorCode code) {
  return code == ErrorCode::unavailable || code == ErrorCode::busy || code == ErrorCode::closed;
}

Result<std::uint64_t> check(const AttachRequest& request) {
  if (request.rank >= request.world)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("rank {} of a world of {}", request.rank, request.world)};
  std::uint64_t elements = 0;
  for (const Box& box : request.boxes) {
    ISTHMUS_TRY(const std::uint64_t of_box, check_box(request.tensors, box));
    elements += of_box;
  }
  return elements;
}

}  // namespace

// One connection, and what outlives it: the books, and the memory with the last contribution.
class AttachClient::Connection {
 public:
  Connection(std::string path, AttachRequest request, std::uint64_t elements)
      : path_(std::move(path)), request_(std::move(request)), elements_(elements) {}

  Result<void> open(Nanoseconds timeout);
  std::size_t elements() const { return elements_; }
  Result<void> initial(std::span<const float> parameters);
  Result<void> contribute(std::uint64_t step, std::span<const float> parameters,
                          std::uint64_t tokens);
  std::span<const float> contributed() const { return area(contribution_offset_); }
  Result<std::optional<AgreedState>> wait_state(Nanoseconds timeout);
  Result<void> took();
  Result<void> progress(const RankProgress& progress);
  Result<void> leaving();

 private:
  struct Frame {
    attach::Kind kind{};
    Bytes body;
  };
  struct Contribution {
    std::uint64_t step = 0;
    std::uint64_t tokens = 0;
    bool taken = false;
  };
  struct Base {
    std::uint64_t step = 0;
    security::Digest record;
    security::Digest run;
    bool contribution_open = false;
  };

  Result<void> open_once(Nanoseconds deadline);
  Result<void> present();
  Result<void> take_memory(const attach::Memory& memory);
  std::span<float> area(std::uint64_t offset) const {
    return memory_ ? memory_->floats(offset, elements_) : std::span<float>();
  }
  // Sends; where the gateway has closed, the reason it gave, if it gave one.
  Result<void> send(const Bytes& frame);
  Result<void> send_contribution();
  Error why_closed(Error closed);
  // The next frame, or nothing when the time came first or a signal arrived.
  Result<std::optional<Frame>> next_frame(Nanoseconds deadline);
  Result<std::optional<Frame>> parse_frame();
  template <class Message>
  Result<Message> decode(const Frame& frame);
  // Answers what needs no caller; true: the caller shall see it.
  Result<bool> on_state(const attach::State& state);
  AgreedState agreed() const;

  std::string path_;
  AttachRequest request_;
  std::uint64_t elements_;
  std::optional<LocalStream> stream_;
  bool attached_ = false;  // `stream_` has been answered with memory
  std::optional<SharedMemory> memory_;
  std::uint64_t contribution_offset_ = 0;
  std::uint64_t state_offset_ = 0;
  std::optional<Error> refused_;  // final: every later call says so

  std::optional<Base> base_;            // the last state taken
  std::uint64_t base_publication_ = 0;  // newest of this connection; 0: none yet
  bool initial_given_ = false;
  std::optional<Contribution> contribution_;
  std::optional<attach::State> state_;         // told, not yet taken
  std::optional<attach::State> state_before_;  // the same, of the connection before this one
};

Result<void> AttachClient::Connection::open(Nanoseconds timeout) {
  const Nanoseconds deadline = local_now() + timeout;
  if (attached_) stream_.reset();
  attached_ = false;
  for (;;) {
    auto opened = open_once(deadline);
    attached_ = opened.has_value();
    // A gateway may take longer over the memory of a large model than one call waits.
    if (opened || opened.error().code == ErrorCode::timeout) return opened;
    stream_.reset();
    if (refused_) return *refused_;
    if (!may_come_yet(opened.error().code)) return opened;
    if (local_now() + kRetryMs * kMillisecond >= deadline)
      return Error{ErrorCode::timeout, "the gateway did not take this rank in time",
                   std::move(opened).error()};
    ::poll(nullptr, 0, kRetryMs);
  }
}

Result<void> AttachClient::Connection::open_once(Nanoseconds deadline) {
  if (!stream_) ISTHMUS_CHECK(present());
  for (;;) {
    ISTHMUS_TRY(auto frame, next_frame(deadline));
    if (!frame) {
      if (local_now() < deadline) continue;
      return Error{ErrorCode::timeout,
                   "waiting for the other ranks of this site to attach, and for memory"};
    }
    if (frame->kind != attach::Kind::memory)
      return Error{ErrorCode::bad_frame, "the gateway did not answer an attach with memory"};
    ISTHMUS_TRY(const attach::Memory memory, decode<attach::Memory>(*frame));
    return take_memory(memory);
  }
}

Result<void> AttachClient::Connection::present() {
  if (state_) state_before_ = std::exchange(state_, std::nullopt);
  base_publication_ = 0;
  ISTHMUS_TRY(stream_, LocalStream::connect(path_));
  attach::Attach hello;
  hello.rank = request_.rank;
  hello.world = request_.world;
  hello.pid = getpid();
  hello.model_settings = request_.model_settings;
  hello.tensors = request_.tensors;
  hello.boxes = request_.boxes;
  return send(attach::encode(hello));
}

// The new memory, with the last contribution (or the initial parameters) of the old one.
Result<void> AttachClient::Connection::take_memory(const attach::Memory& memory) {
  const std::uint64_t area_bytes = elements_ * sizeof(float);
  const auto fits = [&](std::uint64_t offset) {
    return offset % alignof(float) == 0 && offset <= memory.bytes &&
           area_bytes <= memory.bytes - offset;
  };
  if (memory.elements != elements_ || !fits(memory.contribution_offset) ||
      !fits(memory.state_offset))
    return Error{ErrorCode::bad_frame, "the gateway's memory does not fit this rank's boxes"};
  std::optional<SharedMemory> fresh;
  if (elements_ > 0) {
    auto descriptor = stream_->take_descriptor();
    if (!descriptor)
      return Error{ErrorCode::bad_frame, "the gateway's memory came without its descriptor"};
    ISTHMUS_TRY(fresh, SharedMemory::map(std::move(*descriptor), memory.bytes));
    if (memory_)
      copy_to(contributed(), fresh->floats(memory.contribution_offset, elements_).begin());
  }
  memory_ = std::move(fresh);
  contribution_offset_ = memory.contribution_offset;
  state_offset_ = memory.state_offset;
  if (initial_given_ && !base_) return send(attach::encode(attach::Initial{}));
  return {};
}

Result<void> AttachClient::Connection::initial(std::span<const float> parameters) {
  ISTHMUS_ASSERT(attached_ && parameters.size() == elements_ && !base_ && !initial_given_);
  copy_to(parameters, area(contribution_offset_).begin());
  initial_given_ = true;
  return send(attach::encode(attach::Initial{}));
}

Result<void> AttachClient::Connection::contribute(std::uint64_t step,
                                                  std::span<const float> parameters,
                                                  std::uint64_t tokens) {
  ISTHMUS_ASSERT(parameters.size() == elements_);
  ISTHMUS_ASSERT(base_ && step == base_->step + 1);
  // There is one already: this work goes into the next, or is the same again.
  if (base_->contribution_open || contribution_) return {};
  copy_to(parameters, area(contribution_offset_).begin());
  contribution_ = Contribution{step, tokens, false};
  return send_contribution();
}

Result<void> AttachClient::Connection::send_contribution() {
  contribution_->taken = false;
  if (refused_) return *refused_;
  if (stream_ && base_publication_ == 0) return {};  // once the gateway has told its state
  return send(attach::encode(
      attach::Contribute{base_publication_, contribution_->step, contribution_->tokens}));
}

Result<std::optional<AgreedState>> AttachClient::Connection::wait_state(Nanoseconds timeout) {
  if (!attached_ && !refused_) return Error{ErrorCode::closed, "not attached to the gateway"};
  if (state_) return std::optional(agreed());
  state_before_.reset();  // not merged: it will be told again
  const Nanoseconds deadline = local_now() + timeout;
  for (;;) {
    ISTHMUS_TRY(const auto frame, next_frame(deadline));
    if (!frame) return std::optional<AgreedState>();
    if (frame->kind == attach::Kind::taken) {
      ISTHMUS_TRY(const attach::Taken taken, decode<attach::Taken>(*frame));
      if (contribution_ && contribution_->step == taken.step) contribution_->taken = true;
    } else if (frame->kind == attach::Kind::state) {
      ISTHMUS_TRY(const attach::State state, decode<attach::State>(*frame));
      ISTHMUS_TRY(const bool is_news, on_state(state));
      if (is_news) return std::optional(agreed());
    } else {
      return Error{ErrorCode::bad_frame, "an unexpected message from the gateway"};
    }
  }
}

Result<bool> AttachClient::Connection::on_state(const attach::State& state) {
  const bool other_run = base_ && state.run != base_->run;
  if (!base_ || (state.step > base_->step && !other_run)) {
    state_ = state;
    return true;
  }
  if (other_run || (state.step == base_->step && state.record != base_->record)) {
    refused_ = Error{ErrorCode::mismatch,
                     fmt::format("the gateway's state {} is not the one this rank began from: it "
                                 "belongs to another run now; start the rank anew",
                                 state.step)};
    return *refused_;
  }
  // A repetition, after this rank, another one or the gateway came back; or an older state, of a
  // gateway that will catch up.
  base_publication_ = state.publication;
  ISTHMUS_CHECK(send(attach::encode(attach::Took{state.publication})));
  if (state.step < base_->step) return false;
  base_->contribution_open = state.contribution_open;
  if (!contribution_) return false;
  if (state.contribution_open)
    contribution_->taken = true;
  else
    ISTHMUS_CHECK(send_contribution());
  return false;
}

AgreedState AttachClient::Connection::agreed() const {
  AgreedState result;
  result.step = state_->step;
  result.record = state_->record;
  result.run = state_->run;
  result.merge = state_->merge;
  result.final_step = state_->final_step;
  result.contribution_open = state_->contribution_open;
  result.contributed = state_->contributed;
  result.parameters = area(state_offset_);
  if (base_)
    // What the gateway took and lost with its process is not in any state: it is still this rank's.
    result.from = contribution_ && state_->contributed >= contribution_->step
                      ? MergeFrom::contribution
                      : MergeFrom::base;
  return result;
}

Result<void> AttachClient::Connection::took() {
  const auto merged = state_ ? state_ : state_before_;
  ISTHMUS_ASSERT(merged);
  base_ = Base{merged->step, merged->record, merged->run, merged->contribution_open};
  contribution_.reset();
  state_before_.reset();
  if (!state_) return {};
  base_publication_ = state_->publication;
  state_.reset();
  return send(attach::encode(attach::Took{base_publication_}));
}

Result<void> AttachClient::Connection::progress(const RankProgress& progress) {
  if (refused_) return *refused_;
  if (!stream_ || !attached_) return Error{ErrorCode::closed, "not attached to the gateway"};
  const Bytes frame = attach::encode(attach::Progress{progress.inner_step, progress.loss,
                                                      progress.tokens_per_second, progress.state});
  if (auto sent = stream_->send_now(frame); !sent) return why_closed(std::move(sent).error());
  return {};
}

Result<void> AttachClient::Connection::leaving() { return send(attach::encode(attach::Leaving{})); }

Result<void> AttachClient::Connection::send(const Bytes& frame) {
  if (refused_) return *refused_;
  if (!stream_) return Error{ErrorCode::closed, "not attached to the gateway"};
  auto sent = stream_->send(frame, local_now() + kSendTimeout);
  if (sent) return {};
  if (sent.error().code == ErrorCode::closed) return why_closed(std::move(sent).error());
  // Part of a frame may have left: this connection is of no use any more.
  stream_.reset();
  return Error{ErrorCode::closed, "the gateway does not answer", std::move(sent).error()};
}

// A gateway says why before it closes. That may lie behind other messages, of which the gateway
// sends all anew after the next attach, or none matters any more.
Error AttachClient::Connection::why_closed(Error closed) {
  while (!refused_ && stream_) {
    auto frame = next_frame(local_now());
    if (!frame) return std::move(frame).error();
    if (!*frame) break;
    if ((*frame)->kind != attach::Kind::taken) continue;
    const auto taken = attach::decode<attach::Taken>((*frame)->body);
    if (taken && contribution_ && contribution_->step == taken->step) contribution_->taken = true;
  }
  stream_.reset();
  return closed;
}

Result<std::optional<AttachClient::Connection::Frame>> AttachClient::Connection::next_frame(
    Nanoseconds deadline) {
  if (refused_) return *refused_;
  if (!stream_) return Error{ErrorCode::closed, "not attached to the gateway"};
  for (;;) {
    ISTHMUS_TRY(auto frame, parse_frame());
    if (frame) {
      if (frame->kind != attach::Kind::refused) return frame;
      ISTHMUS_TRY(const attach::Refused refused, decode<attach::Refused>(*frame));
      stream_.reset();
      Error why = attach::error_of(refused);
      why.message = "the gateway refused: " + why.message;
      if (!may_come_yet(why.code)) refused_ = why;
      return why;
    }
    auto received = stream_->receive(deadline);
    if (!received) {
      stream_.reset();
      return std::move(received).error();
    }
    if (!*received) return std::optional<Frame>();
  }
}

Result<std::optional<AttachClient::Connection::Frame>> AttachClient::Connection::parse_frame() {
  const auto bytes = stream_->received();
  if (bytes.size() < attach::kHeaderBytes) return std::optional<Frame>();
  const attach::Header header = attach::read_header(bytes.first(attach::kHeaderBytes));
  if (header.body_bytes > attach::kReplyBytesMax)
    return Error{ErrorCode::bad_frame, "a message of the gateway is too long"};
  if (bytes.size() - attach::kHeaderBytes < header.body_bytes) return std::optional<Frame>();
  const auto body = bytes.subspan(attach::kHeaderBytes, header.body_bytes);
  Frame frame{header.kind, Bytes(body.begin(), body.end())};
  stream_->take(attach::kHeaderBytes + header.body_bytes);
  return std::optional(std::move(frame));
}

template <class Message>
Result<Message> AttachClient::Connection::decode(const Frame& frame) {
  if (auto message = attach::decode<Message>(frame.body)) return *std::move(message);
  return Error{ErrorCode::bad_frame, "a message of the gateway does not decode"};
}

Result<std::unique_ptr<AttachClient>> AttachClient::create(const std::string& path,
                                                           AttachRequest request) {
  ISTHMUS_TRY(const std::uint64_t elements, check(request));
  auto connection = std::make_unique<Connection>(path, std::move(request), elements);
  return std::unique_ptr<AttachClient>(new AttachClient(std::move(connection)));
}

Result<std::unique_ptr<AttachClient>> AttachClient::attach(const std::string& path,
                                                           AttachRequest request,
                                                           Nanoseconds timeout) {
  ISTHMUS_TRY(auto client, create(path, std::move(request)));
  ISTHMUS_CHECK(client->reattach(timeout));
  return client;
}

AttachClient::AttachClient(std::unique_ptr<Connection> connection)
    : connection_(std::move(connection)) {}
AttachClient::~AttachClient() = default;

Result<void> AttachClient::reattach(Nanoseconds timeout) { return connection_->open(timeout); }
std::size_t AttachClient::elements() const { return connection_->elements(); }
Result<void> AttachClient::initial(std::span<const float> parameters) {
  return connection_->initial(parameters);
}
Result<void> AttachClient::contribute(std::uint64_t step, std::span<const float> parameters,
                                      std::uint64_t tokens) {
  return connection_->contribute(step, parameters, tokens);
}
std::span<const float> AttachClient::contributed() const { return connection_->contributed(); }
Result<std::optional<AgreedState>> AttachClient::wait_state(Nanoseconds timeout) {
  return connection_->wait_state(timeout);
}
Result<void> AttachClient::took() { return connection_->took(); }
Result<void> AttachClient::progress(const RankProgress& progress) {
  return connection_->progress(progress);
}
Result<void> AttachClient::leaving() { return connection_->leaving(); }

}  // namespace isthmus::inter
