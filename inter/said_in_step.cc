#include "inter/said_in_step.h"

#include <variant>

namespace isthmus::inter {
namespace {

std::uint64_t ballot_of(const Signed& message) {
  if (message.type == MessageType::open || message.type == MessageType::close) return 0;
  const auto decoded = decode_ballot(message.type, message.body);
  return decoded ? std::visit([](const auto& ballot) { return ballot.ballot; }, decoded->ballot)
                 : 0;
}

}  // namespace

bool SaidInStep::knows(const Signed& message) const {
  const auto found = newest_.find({message.signer, message.type});
  return found != newest_.end() && found->second.messages.count(message.digest()) > 0;
}

bool SaidInStep::note(const Signed& message) {
  auto& newest = newest_[{message.signer, message.type}];
  const auto ballot = ballot_of(message);
  if (ballot < newest.ballot) return false;
  if (ballot > newest.ballot) newest = {.ballot = ballot, .messages = {}};
  if (newest.messages.size() >= kAlikeMax) return false;
  return newest.messages.emplace(message.digest(), message).second;
}

}  // namespace isthmus::inter
