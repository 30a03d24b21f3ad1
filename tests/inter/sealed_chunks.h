// Chunks of a contribution as its origin makes them.
#pragma once

#include <vector>

#include "inter/contribution.h"

namespace isthmus::inter {

// `coded(i)`: UnsealedChunk i.
template <class Coded>
void add_all_chunks(Contribution& contribution, const security::Signer& signer,
                    const Coded& coded) {
  const auto& plan = contribution.plan();
  for (std::uint32_t first = 0; first < plan.chunks(); first += kSealedTogether) {
    std::vector<PackedChunk> group;
    for (auto i = first; i < std::min(first + kSealedTogether, plan.chunks()); ++i)
      group.push_back(pack_chunk(plan, contribution.transfer(), i, coded(i), true));
    auto sealed = seal_chunks(signer, group);
    for (std::size_t i = 0; i < sealed.size(); ++i)
      contribution.add(first + static_cast<std::uint32_t>(i), std::move(sealed[i]));
  }
}

}  // namespace isthmus::inter
