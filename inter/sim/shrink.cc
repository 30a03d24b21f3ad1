#include "inter/sim/shrink.h"

#include <algorithm>
#include <cctype>
#include <numeric>

namespace isthmus::inter::sim {
namespace {

using Places = std::vector<std::uint32_t>;

class Shrinker {
 public:
  Shrinker(const RunPart& run, const std::string& violation, const std::function<bool()>& enough)
      : run_(run), enough_(enough), invariant_(invariant_of(violation)) {
    best_.violation = violation;
  }

  Shrunk search(std::uint32_t faults, std::uint32_t sites, std::uint32_t least_sites,
                std::uint64_t outer_steps) {
    faults_.resize(faults);
    std::iota(faults_.begin(), faults_.end(), 0U);
    best_.part.faults = faults_;
    leave_out_faults();
    for (std::uint64_t steps = 1; steps < outer_steps; ++steps) {
      auto part = best_.part;
      part.outer_steps = steps;
      if (fails(part)) break;
    }
    for (auto fewer = sites; fewer > least_sites; --fewer) {
      auto part = best_.part;
      part.sites = fewer - 1;
      if (!fails(part)) break;
    }
    leave_out_faults();  // a smaller run may need fewer
    return best_;
  }

 private:
  // Then that is the best so far.
  bool fails(const PartOfRun& part) {
    if (enough_()) return false;
    ++best_.runs;
    const auto violation = run_(part);
    if (!violation || invariant_of(*violation) != invariant_) return false;
    best_.part = part;
    best_.violation = *violation;
    return true;
  }

  bool fails_without(std::size_t begin, std::size_t end) {
    Places fewer(faults_.begin(), faults_.begin() + static_cast<std::ptrdiff_t>(begin));
    fewer.insert(fewer.end(), faults_.begin() + static_cast<std::ptrdiff_t>(end), faults_.end());
    auto part = best_.part;
    part.faults = fewer;
    if (!fails(part)) return false;
    faults_ = std::move(fewer);
    return true;
  }

  // In pieces, of all of them first, of one in the end; that no single one can be left out is tried
  // until it is so.
  void leave_out_faults() {
    const auto size = [&] { return faults_.size(); };
    for (auto piece = size(); piece > 0 && size() > 0;) {
      bool any = false;
      for (std::size_t at = 0; at < size();) {
        const auto end = std::min(size(), at + piece);
        if (fails_without(at, end))
          any = true;
        else
          at = end;
      }
      if (piece > 1)
        piece = std::min(size(), (piece + 1) / 2);
      else if (!any || enough_())
        break;
    }
  }

  const RunPart& run_;
  const std::function<bool()>& enough_;
  const std::string invariant_;
  Shrunk best_;
  Places faults_;  // its
};

}  // namespace

std::string invariant_of(std::string_view violation) {
  if (violation.starts_with('[')) violation.remove_prefix(violation.find(']') + 1);
  // Which error it was that ended a site, but not all that it says.
  constexpr std::string_view kFailed = " failed: ";
  const auto failed = violation.find(kFailed);
  const auto from = failed == std::string_view::npos ? 0 : failed + kFailed.size();
  violation = violation.substr(0, violation.find_first_of(":;", from));
  std::string what;
  for (const char c : violation) {
    const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!number)
      what += c;
    else if (!what.ends_with('#'))
      what += '#';
  }
  what.erase(0, what.find_first_not_of(' '));
  return what;
}

Shrunk shrink(const RunPart& run, const std::string& violation, std::uint32_t faults,
              std::uint32_t sites, std::uint32_t least_sites, std::uint64_t outer_steps,
              const std::function<bool()>& enough) {
  return Shrinker(run, violation, enough).search(faults, sites, least_sites, outer_steps);
}

}  // namespace isthmus::inter::sim
