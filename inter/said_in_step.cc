#include "inter/said_in_step.h"

#include <variant>

namespace isthmus::inter {
namespace {

constexpr Nanoseconds kPassedOnApart = kSecond / 2;  // of one signer and kind
// Of all that one signer says.
constexpr double kPassedOnPerSecond = 1 << 10;
constexpr std::size_t kPassedOnAtOnce = 32 << 10;

std::size_t alike_max(MessageType type) {
  if (type == MessageType::close) return SaidInStep::kClosesMax;
  const bool last = type == MessageType::open || type == MessageType::promise;
  return last ? 1 : SaidInStep::kInBallotMax;
}

}  // namespace

SaidInStep::Age SaidInStep::age_of(const Signed& message) {
  if (message.type == MessageType::close) return {};
  if (message.type == MessageType::open) {
    const auto open = decode_open(message.body);
    return {.number = open ? open->attempt : 0};
  }
  const auto decoded = decode_ballot(message.type, message.body);
  if (!decoded) return {};
  const auto* promise = std::get_if<Promise>(&decoded->ballot);
  return {.number = std::visit([](const auto& said) { return said.ballot; }, decoded->ballot),
          .held = promise != nullptr ? promise->held.size() : 0};
}

bool SaidInStep::knows(const Signed& message) const {
  const auto found = said_.find({message.signer, message.type});
  return found != said_.end() && found->second.newest.count(message.digest()) > 0;
}

bool SaidInStep::note(const Signed& message) {
  auto& said = said_[{message.signer, message.type}];
  const auto age = age_of(message);
  if (age < said.age) return false;
  if (age > said.age) {
    said.age = age;
    said.newest.clear();
  }
  if (said.newest.size() >= alike_max(message.type)) return false;
  return said.newest.try_emplace(message.digest(), Known{message}).second;
}

bool SaidInStep::may_pass_on(Said& said, const Signed& message, Nanoseconds now) {
  auto& pace = passed_on_.try_emplace(message.signer, kPassedOnPerSecond).first->second;
  const auto owed = pace.reserve(now, 0) - now;
  if (now < said.again || owed > pace.cost(kPassedOnAtOnce)) return false;
  pace.reserve(now, message.body.size());
  said.again = now + kPassedOnApart;
  return true;
}

bool SaidInStep::passes_on(const Signed& message, Nanoseconds now) {
  auto& said = said_.at({message.signer, message.type});
  auto& known = said.newest.at(message.digest());
  known.due = !may_pass_on(said, known.message, now);
  return !known.due;
}

std::vector<const Signed*> SaidInStep::due(Nanoseconds now) {
  std::vector<const Signed*> messages;
  for (auto& [about, said] : said_)
    for (auto& [digest, known] : said.newest) {
      if (!known.due || !may_pass_on(said, known.message, now)) continue;
      known.due = false;
      messages.push_back(&known.message);
    }
  return messages;
}

}  // namespace isthmus::inter
