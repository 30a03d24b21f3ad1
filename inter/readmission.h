// Readmission: when a site that was dropped may join again. One of which no record has named
// anything since it was taken in has held every step up until it was dropped once more: the next
// time it waits for 2 steps, then 4, 8, … 1024. All of it follows from the chain of records, so all
// voters know the same.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

#include "inter/record.h"

namespace isthmus::inter {

class Readmission {
 public:
  // The next record of the chain.
  void note(const Record& record) {
    for (const auto& part : record.parts) sites_.erase(part.site);
    for (const auto site : record.next_view.members)
      if (!record.view.is_member(site)) sites_[site].in_vain = true;
    for (const auto site : record.view.members) {
      const auto found = sites_.find(site);
      if (record.next_view.is_member(site) || found == sites_.end() || !found->second.in_vain)
        continue;
      auto& dropped = found->second;
      dropped.in_vain = false;
      dropped.times = std::min(dropped.times + 1, kTimesMax);
      dropped.from = record.step + (std::uint64_t{1} << dropped.times);
    }
  }
  bool due(SiteId site, std::uint64_t step) const {
    const auto found = sites_.find(site);
    return found == sites_.end() || step >= found->second.from;
  }

 private:
  static constexpr int kTimesMax = 10;

  struct Site {
    bool in_vain = false;  // a member of which nothing has come yet
    int times = 0;         // it was dropped so, in a row
    std::uint64_t from = 0;
  };
  std::map<SiteId, Site> sites_;
};

}  // namespace isthmus::inter
