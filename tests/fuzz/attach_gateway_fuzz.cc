// Fuzz target: up to four processes that speak to a gateway's attach socket, and scribble in the
// memory that it shares with them. A step's `what` is one of Act, `who` the connection.
#include <algorithm>

#include "inter/attach_server.h"
#include "inter/sim/simulation.h"
#include "tests/fuzz/attach_world.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"
#include "tests/inter/fake_gateway.h"

namespace isthmus::inter {
namespace {

enum Act : std::uint8_t { raw, frame, scribble, wait, decide, end, kActs };
constexpr std::size_t kConnections = 4;
// Of a status: of thousands of ranks it is longer than a socket takes.
constexpr int kPiecesMax = 1000;

// What it says is always whole and decodes.
void check_answer(attach::Kind kind, std::span<const std::byte> body) {
  using attach::Kind;
  ISTHMUS_ASSERT(kind == Kind::memory  ? attach::decode<attach::Memory>(body).has_value()
                 : kind == Kind::state ? attach::decode<attach::State>(body).has_value()
                 : kind == Kind::taken ? attach::decode<attach::Taken>(body).has_value()
                 : kind == Kind::refused
                     ? !attach::decode<attach::Refused>(body).value().sentence.empty()
                     : kind == Kind::status_json &&
                           parse_status(attach::decode<attach::StatusJson>(body).value().json));
}

class World {
 public:
  World() {
    gateway_.ranks = &server_;
    ISTHMUS_ASSERT(server_.listen());
    loop_.run_ready();
  }

  void act(const ScriptStep& step) {
    auto& connection = connections_[step.who % kConnections];
    if (!connection && step.what % kActs != wait) connection = RawEnd::connect(path());
    switch (step.what % kActs) {
      case raw:
        connection->send(step.bytes);
        break;
      case frame:
        connection->send(framed(step.bytes));
        break;
      case scribble:
        write_memory(connection->memory.get(), step.bytes);
        break;
      case wait:
        pass(std::min<std::size_t>(step.bytes.size() + 1, 20) * kSecond);
        break;
      case decide:
        if (gateway_.state) gateway_.decide(values(gateway_.state->size(), step.who));
        break;
      case end:
        connection.reset();
    }
    loop_.run_ready();
    for (auto& one : connections_) {
      if (!one) continue;
      one->read();
      while (const auto message = one->next()) check_answer(message->first, message->second);
    }
  }

  // It has survived all of it: it answers, and a rank can take part.
  void expect_healthy() {
    for (auto& connection : connections_) connection.reset();
    pass(20 * kSecond);
    auto visitor = RawEnd::connect(path());
    visitor.send(attach::encode(attach::Status{}));
    auto answer = visitor.next();
    for (int pieces = 0; !answer && pieces < kPiecesMax; ++pieces) {
      loop_.run_ready();
      visitor.read();
      answer = visitor.next();
    }
    ISTHMUS_ASSERT(answer && answer->first == attach::Kind::status_json);
    check_answer(answer->first, answer->second);
  }

 private:
  static std::string path() {
    static const SocketFolder folder;
    return folder.socket();
  }
  void pass(Nanoseconds time) {
    const auto end = simulation_.now() + time;
    loop_.run_ready();
    while (loop_.next_timer() && *loop_.next_timer() <= end) {
      simulation_.advance(std::max(simulation_.now(), *loop_.next_timer()));
      loop_.run_ready();
    }
    simulation_.advance(end);
  }
  static void write_memory(int descriptor, std::span<const std::byte> bytes) {
    if (bytes.size() < 2) return;
    ByteReader in(bytes);
    const auto offset = in.get<std::uint16_t>();
    (void)!::pwrite(descriptor, in.rest().data(), in.rest().size(), offset);
  }
  static AttachOptions options() {
    AttachOptions options;
    options.memory_bytes_max = 1 << 20;
    return options;
  }

  sim::Simulation simulation_;
  EventLog log_{simulation_, "alpha"};
  Loop loop_{simulation_};
  FakeGateway gateway_;
  AttachServer server_{loop_,
                       log_,
                       path(),
                       gateway_,
                       [this] {
                         GatewayStatus status;
                         status.site = "alpha";
                         status.ranks = server_.status();
                         return status;
                       },
                       options()};
  std::array<std::optional<RawEnd>, kConnections> connections_;
};

attach::Attach attach_of(std::uint32_t rank, std::uint32_t world) {
  attach::Attach message;
  const auto request = whole();
  message.rank = rank;
  message.world = world;
  message.model_settings = request.model_settings;
  message.tensors = request.tensors;
  message.boxes = world == 1 ? request.boxes : std::vector<Box>{{0, {2 * rank, 0}, {2, 6}}};
  return message;
}

}  // namespace
}  // namespace isthmus::inter

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  inter::World world;
  each_step(fuzz_input(data, size), [&](const ScriptStep& step) { world.act(step); });
  world.expect_healthy();
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using namespace inter;
  std::vector<Bytes> seeds;
  for (const std::uint32_t world : {1, 2}) {
    ScriptWriter script;
    const auto each = [&](Act act, const Bytes& bytes) {
      for (std::uint8_t rank = 0; rank < world; ++rank) script.step(act, rank, bytes);
    };
    for (std::uint8_t rank = 0; rank < world; ++rank)
      script.step(frame, rank, unframed(attach_of(rank, world)));
    each(frame, unframed(attach::Initial{}));
    each(frame, unframed(attach::Took{1}));
    each(frame, unframed(attach::Progress{3, 2.5, 1000, "computing"}));
    each(scribble, ByteWriter().put(std::uint16_t{8}).put(1.5f).take());
    each(frame, unframed(attach::Contribute{1, 1, 640}));
    script.step(decide, 2);
    each(frame, unframed(attach::Took{2}));
    script.step(wait, 0, Bytes(11));
    script.step(frame, 3, unframed(attach::Status{}));
    each(frame, unframed(attach::Leaving{}));
    script.step(end, 0);
    seeds.push_back(script.take());
  }
  seeds.push_back(ScriptWriter().step(raw, 0, attach::encode(attach_of(0, 1))).take());
  attach::Attach newer = attach_of(0, 1);
  newer.version = attach::kVersion + 1;
  seeds.push_back(ScriptWriter().step(frame, 0, unframed(newer)).take());
  return seeds;
}

}  // namespace isthmus
