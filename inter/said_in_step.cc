#include "inter/said_in_step.h"

#include <algorithm>
#include <variant>

namespace isthmus::inter {
namespace {

// Of one signer and kind.
constexpr Nanoseconds kPassedOnApart = kSecond / 2;
constexpr Nanoseconds kPassedOnBytesPerSecond = 8 << 10;

bool is_of_contribution(MessageType type) {
  return type == MessageType::open || type == MessageType::close;
}

std::size_t alike_max(MessageType type) {
  if (is_of_contribution(type)) return SaidInStep::kAttemptsMax;
  return type == MessageType::promise ? 1 : SaidInStep::kInBallotMax;
}

}  // namespace

SaidInStep::Age SaidInStep::age_of(const Signed& message) {
  if (is_of_contribution(message.type)) return {};
  const auto decoded = decode_ballot(message.type, message.body);
  if (!decoded) return {};
  const auto* promise = std::get_if<Promise>(&decoded->ballot);
  return {.ballot = std::visit([](const auto& said) { return said.ballot; }, decoded->ballot),
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

bool SaidInStep::Said::may_pass_on(const Known& known, Nanoseconds now) {
  if (now < again) return false;
  const auto bytes = static_cast<Nanoseconds>(known.message.body.size());
  again = now + std::max(kPassedOnApart, kSecond * bytes / kPassedOnBytesPerSecond);
  return true;
}

bool SaidInStep::passes_on(const Signed& message, Nanoseconds now) {
  auto& said = said_.at({message.signer, message.type});
  auto& known = said.newest.at(message.digest());
  known.due = !said.may_pass_on(known, now);
  return !known.due;
}

std::vector<const Signed*> SaidInStep::due(Nanoseconds now) {
  std::vector<const Signed*> messages;
  for (auto& [about, said] : said_)
    for (auto& [digest, known] : said.newest) {
      if (!known.due || !said.may_pass_on(known, now)) continue;
      known.due = false;
      messages.push_back(&known.message);
    }
  return messages;
}

}  // namespace isthmus::inter
