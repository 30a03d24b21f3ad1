// Of what a proposer of a ballot may name (PROTOCOL.md, "Ballots"): parts that some majority of the
// voters hold in common, as their promises tell.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "inter/record.h"

namespace isthmus::inter {

// The best set of `min_sites` parts or more, one at least, that `majority` of the holders have:
// most tokens first, then more parts, then the lowest ids. `held`: of each holder, by ascending
// site; kSitesMax holders at most.
//
// Each set of holders that share parts is looked at once, at most 4096 of them: as many as there
// are among thirteen holders, for whom the set is the best there is. Among more the search begins
// with the parts that most hold. It may find none where there is one (to find such a set is as hard
// as to find a clique), but hardly: of pairs it looks at as many as there are among ninety parts.
std::optional<std::vector<Part>> best_common_parts(
    const std::vector<const std::vector<Part>*>& held, std::size_t majority, std::size_t min_sites);

}  // namespace isthmus::inter
