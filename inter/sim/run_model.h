// RunModel: a whole run again, from its records and from what the ranks made, in f64 and without
// any code of the gateway: where every contribution went is accounted for.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "inter/record.h"

namespace isthmus::inter::sim {

class RunModel {
 public:
  // Knows the codecs none and bf16.
  RunModel(std::size_t elements, OuterRule rule, compress::CodecId codec)
      : elements_(elements), rule_(rule), codec_(codec) {}

  // The ranks of a site made this, and its gateway took it.
  void contributed(SiteId site, std::uint64_t step, std::span<const float> base,
                   std::span<const float> parameters, std::uint64_t tokens);
  // It is on disk, signed: what no record names of it is carried.
  void closed(SiteId site, std::uint64_t step);
  // It was found on disk: closed before a crash, or others' copy of what a wiped disk had.
  void restored(SiteId site, std::uint64_t step);
  void give_up_after(std::uint64_t step);
  // The disk of this site is empty: what it had not passed on to a record is gone. What it has
  // closed may still be named, for others have it.
  void wiped(SiteId site);

  // What must be after record `last`: the parameters of all sites, and what rides in the next
  // contribution of each. `wrong`: what the records say that cannot be.
  struct State {
    std::vector<double> agreed;
    std::map<SiteId, std::vector<double>> feedback;  // nothing yet: none
  };
  State after(std::uint64_t last, const std::map<std::uint64_t, Record>& records,
              std::span<const SiteId> sites, std::vector<std::string>& wrong) const;

 private:
  struct Made {
    std::vector<double> pseudo_gradient;
    std::uint64_t tokens = 0;
    bool closed = false;  // of those in wiped_
  };
  // What a site made again since its disk was wiped; nullptr: it has not been, or the step is new.
  std::map<std::uint64_t, Made>* made_again(SiteId site, std::uint64_t step);
  void forget(SiteId site, std::uint64_t step, State& state,
              std::map<SiteId, std::uint64_t>& carried) const;
  std::size_t elements_;
  OuterRule rule_;
  compress::CodecId codec_;
  std::map<std::pair<SiteId, std::uint64_t>, Made> made_;
  std::set<std::pair<SiteId, std::uint64_t>> closed_;
  // For each wiped disk, the newest step that the site had closed: whatever rides after it is gone.
  // And what it made since to steps up to that one, which nobody takes any more: all of it rides.
  std::map<std::pair<SiteId, std::uint64_t>, std::map<std::uint64_t, Made>> wiped_;
};

}  // namespace isthmus::inter::sim
