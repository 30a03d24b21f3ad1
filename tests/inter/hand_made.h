// What a puppet contributes that is a member: made by hand, from the state that a gateway has.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "inter/contribution.h"
#include "tests/inter/puppet.h"
#include "tests/inter/scripted_federation.h"
#include "tests/inter/sealed_chunks.h"

namespace isthmus::inter {

struct HandMade {
  std::shared_ptr<Contribution> all;
  Signed close;

  void offer_to(Link& link) const {
    link.send(all->announcement().encode());
    link.offer(all->transfer(), all->step(), all->plan().chunks(), all, false);
    link.send(close.encode());
  }
};

// To the step at hand of `gateway`, of no change, at this attempt; `spoil` may then do as it likes
// with a chunk's frames.
template <class Spoil>
HandMade hand_made(const std::shared_ptr<const ChunkPlan>& plan, const security::Signer& signer,
                   SiteId self, const Gateway& gateway, const Spoil& spoil,
                   std::uint64_t attempt = 7) {
  const auto& agreed = gateway.state()->agreed;
  const auto step = gateway.state()->step + 1;
  const auto parent =
      step == 1 ? gateway.genesis()->record.hash() : gateway.chain()[step - 2].record.hash();
  const auto open = plan->announce(
      {.run = gateway.genesis()->record.hash(), .view = gateway.view().digest(), .step = step}, 100,
      parent, attempt);
  HandMade made{.all = std::make_shared<Contribution>(
                    plan, sign(signer, self, MessageType::open, encode(open)), open),
                .close = {}};
  std::vector<float> residual(agreed.size());
  const ValuesInVector values(std::vector<float>(agreed.begin(), agreed.end()));
  add_all_chunks(*made.all, signer, [&](std::uint32_t i) {
    auto chunk = *code_chunk(*plan, i, agreed, {}, values, residual);
    spoil(i, chunk.frames());
    return chunk;
  });
  const Close close{.id = open.id,
                    .transfer = made.all->transfer(),
                    .root = made.all->root(),
                    .bytes = made.all->bytes(),
                    .tokens = open.tokens,
                    .base = open.base,
                    .state_root = gateway.root()};
  made.close = sign(signer, self, MessageType::close, encode(close));
  return made;
}

}  // namespace isthmus::inter
