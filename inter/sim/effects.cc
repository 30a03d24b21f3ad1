#include "inter/sim/effects.h"

#include <algorithm>

namespace isthmus::inter::sim {

Effects::Number Effects::begin(const History::Struck& struck, std::string counter,
                               std::function<bool()> hit) {
  lasting_.emplace(++last_, Lasting{struck, std::move(counter), std::move(hit)});
  return last_;
}

void Effects::end(Number fault, Nanoseconds now) {
  auto ended = lasting_.extract(fault);
  if (ended.empty()) return;
  ended.mapped().struck.until = now;
  settle(ended.mapped());
}

void Effects::settle(const Lasting& fault) {
  if (fault.hit && !fault.hit()) return;
  if (!fault.counter.empty()) ++counters_[fault.counter];
  struck_.push_back(fault.struck);
}

std::vector<History::Struck> Effects::finish() {
  for (const auto& [number, fault] : lasting_) settle(fault);
  lasting_.clear();
  std::ranges::stable_sort(struck_, {}, &History::Struck::from);
  return std::move(struck_);
}

}  // namespace isthmus::inter::sim
