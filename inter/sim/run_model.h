// RunModel: a whole run again, from its records and from what the ranks made, without any code of
// the gateway: where every contribution went is accounted for. Sums are in f64. What a site codes
// is in f32, operation by operation as compress/FORMATS.md has it: a value half way between two
// codes would else go the other way.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compress/codec.h"
#include "inter/record.h"

namespace isthmus::inter::sim {

class RunModel {
 public:
  // `tensors`: the elements of each, in layout order.
  RunModel(std::vector<std::size_t> tensors, OuterRule rule, compress::CodecId codec);

  // A site's `life` ends with its disk: what rides at its end is gone, and what it had closed may
  // still be named, for others have it.
  // The ranks of a site made this, and its gateway took it.
  void contributed(SiteId site, std::uint64_t life, std::uint64_t step, std::span<const float> base,
                   std::span<const float> parameters, std::uint64_t tokens);
  // It is on disk, signed: what no record names of it is carried.
  void closed(SiteId site, std::uint64_t life, std::uint64_t step);
  // The site holds this contribution of its own, made in this life or (others gave it back) before.
  void held(SiteId site, std::uint64_t life, std::uint64_t step, const security::Digest& root);
  void give_up_after(std::uint64_t step);

  // What must be after record `last`: the parameters of all sites, and what rides in the next
  // contribution of each. `wrong`: what the records say that cannot be.
  struct State {
    std::vector<double> agreed;
    std::map<SiteId, std::vector<double>> feedback;  // nothing yet: none
  };
  using Lives = std::map<SiteId, std::uint64_t>;  // the one that each site is in
  State after(std::uint64_t last, const std::map<std::uint64_t, Record>& records,
              const Lives& lives, std::vector<std::string>& wrong);

 private:
  struct Made {
    std::vector<double> pseudo_gradient;
    std::uint64_t tokens = 0;
    bool closed = false;
    security::Digest root;  // zero: not known
  };
  struct Riding {
    std::vector<double> feedback;
    std::uint64_t tokens = 0;
  };
  using Life = std::pair<SiteId, std::uint64_t>;
  // The run after some steps.
  struct Progress {
    std::uint64_t step = 0;
    std::vector<double> agreed, momentum;
    std::map<Life, Riding> riding;
    std::vector<std::string> wrong;
  };
  Progress beginning() const;
  void apply(std::uint64_t step, const Record& record, Progress& run) const;
  std::vector<float> decoded(const std::vector<float>& quantity) const;
  void changed(std::uint64_t step);  // what was made for it
  const std::pair<const Life, std::map<std::uint64_t, Made>>* maker(const Part& part,
                                                                    std::uint64_t step) const;

  std::vector<std::size_t> tensors_;
  std::size_t elements_;  // of all
  OuterRule rule_;
  compress::CodecId codec_;
  std::map<Life, std::map<std::uint64_t, Made>> made_;  // by step
  Progress settled_;  // of a few steps before the newest one that was asked for: not made again
};

}  // namespace isthmus::inter::sim
