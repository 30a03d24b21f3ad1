// The files of a gateway's store that has two of everything: what tests tear and spoil, and where
// fuzzing of files begins.
#pragma once

#include <map>
#include <string>

#include "inter/outer_store.h"

namespace isthmus::inter {

inline constexpr const char* kSampleFolder = "outer";
inline constexpr VoteFileId kSampleVoteFile = 77;
inline constexpr std::uint64_t kSampleContributionStep = 3;
inline constexpr SiteId kSampleContributionSite = 4;

ModelLayout sample_layout();
OuterState sample_state(std::uint64_t step);

// By their names in the folder.
std::map<std::string, Bytes> sample_store_files();

}  // namespace isthmus::inter
