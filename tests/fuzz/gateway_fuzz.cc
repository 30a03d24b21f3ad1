// Fuzz target: what a member without a vote says to a gateway in the middle of a run. Of a step's
// `what` the bit 1: it is a signed message, in the name of the site that the first byte has; 2: and
// that signature is the member's own; 4: the body begins with the step at hand; 8: a second passes.
// `who` is the type.
#include <algorithm>

#include "base/assert.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/script.h"
#include "tests/inter/sample_messages.h"
#include "tests/inter/scripted_federation.h"

namespace isthmus::inter {
namespace {

constexpr SiteId kMember = 3;
constexpr std::uint64_t kBegin = 2;  // the step from which on it says what the input has
constexpr Nanoseconds kPatience = 10 * kSecond;

ScriptedFederation::Options endless() {
  auto options = options_of({kSecond, kSecond, kSecond});
  options.elements = 600;
  options.puppets = {kMember};
  options.without_vote = {kMember};
  options.gateway.sync.outer_steps = 100'000;
  options.gateway.first_wait = options.gateway.straggler_wait.emplace(kPatience);
  return options;
}

Bytes front_of(const StepId& id) {
  auto bytes = encode(id, Prepare{0});
  bytes.resize(bytes.size() - sizeof(Prepare::ballot));
  return bytes;
}

// As the member says it.
Bytes message_of(const ScriptStep& step, const Puppet& member, const StepId& at_hand) {
  const auto type = static_cast<MessageType>(step.who);
  if ((step.what & 1) == 0 || step.bytes.empty())
    return ByteWriter().put(type).raw(step.bytes).take();
  const auto signer = static_cast<SiteId>(step.bytes.front());
  Bytes body(step.bytes.begin() + 1, step.bytes.end());
  if (const auto front = front_of(at_hand); (step.what & 4) != 0) {
    body.resize(std::max(body.size(), front.size()));
    std::copy(front.begin(), front.end(), body.begin());
  }
  if ((step.what & 2) != 0 && is_signed(type))
    return sign(member.signer, signer, type, std::move(body)).encode();
  return Signed{.type = type, .signer = signer, .signature = {}, .body = std::move(body)}.encode();
}

void converse(std::span<const std::byte> input) {
  ScriptedFederation federation(endless());
  auto& member = federation.puppet(kMember);
  member.heard = [](Link& from, MessageType type, ByteReader& in) {
    Puppet::follow_as_member(from, type, in);
  };
  ISTHMUS_ASSERT(federation.run_until([&] { return federation.step(1) >= kBegin; }, 120 * kSecond));
  each_step(input, [&](const ScriptStep& step) {
    member.link(1).send(message_of(step, member, federation.step_at_hand(1)));
    federation.run_for((step.what & 8) != 0 ? kSecond : kMillisecond);
  });
  // Whatever it was, the others go on.
  for (const SiteId site : {1, 2}) {
    const auto before = federation.step(site);
    ISTHMUS_ASSERT(
        federation.run_until([&] { return federation.step(site) >= before + 2; }, 20 * kPatience));
    ISTHMUS_ASSERT(!federation.process(site).ended());
  }
}

}  // namespace
}  // namespace isthmus::inter

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  isthmus::inter::converse(isthmus::fuzz_input(data, size));
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using inter::MessageType;
  const std::pair<std::string_view, MessageType> kSigned[] = {
      {"open", MessageType::open},       {"close", MessageType::close},
      {"prepare", MessageType::prepare}, {"promise", MessageType::promise},
      {"propose", MessageType::propose}, {"accept", MessageType::accept},
      {"saved", MessageType::saved}};
  constexpr std::string_view kOthers[] = {"status",  "record request", "records",      "fetch",
                                          "lacking", "enough",         "state request"};
  std::vector<Bytes> seeds;
  ScriptWriter all;
  for (const auto& sample : inter::sample_messages()) {
    for (const auto& [name, type] : kSigned) {
      if (sample.name != name) continue;
      const auto body = ByteWriter().put(std::uint8_t{3}).raw(sample.bytes).take();
      for (const std::uint8_t what : {5, 7, 15})
        seeds.push_back(ScriptWriter().step(what, static_cast<std::uint8_t>(type), body).take());
      all.step(7, static_cast<std::uint8_t>(type), body);
    }
    if (std::ranges::find(kOthers, sample.name) == std::end(kOthers)) continue;
    const auto type = static_cast<std::uint8_t>(sample.bytes.front());
    const auto rest = std::span(sample.bytes).subspan(1);
    seeds.push_back(ScriptWriter().step(8, type, rest).take());
    all.step(0, type, rest);
  }
  seeds.push_back(all.take());
  // Types that there are not.
  for (const std::uint8_t type : {0, 8, 15, 23, 255})
    seeds.push_back(ScriptWriter().step(5, type, Bytes(200, std::byte{3})).take());
  return seeds;
}

}  // namespace isthmus
