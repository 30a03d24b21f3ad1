#include "inter/sim/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {

void RunModel::contributed(SiteId site, std::uint64_t step, std::span<const float> base,
                           std::span<const float> parameters, std::uint64_t tokens) {
  auto& made = is_again(site, step) ? again_[site][step] : made_[{site, step}];
  made.tokens = tokens;
  made.pseudo_gradient.resize(base.size());
  for (std::size_t i = 0; i < base.size(); ++i)
    made.pseudo_gradient[i] = static_cast<double>(base[i]) - static_cast<double>(parameters[i]);
}

void RunModel::closed(SiteId site, std::uint64_t step) {
  if (!is_again(site, step))
    closed_.emplace(site, step);
  else if (const auto made = again_[site].find(step); made != again_[site].end())
    made->second.closed = true;
}

bool RunModel::is_again(SiteId site, std::uint64_t step) const {
  const auto first = forgotten_.lower_bound({site, step});
  return first != forgotten_.end() && first->first == site;
}

void RunModel::give_up_after(std::uint64_t step) {
  std::erase_if(closed_, [&](const auto& made) { return made.second > step; });
}

void RunModel::wiped(SiteId site) {
  std::uint64_t newest = 0;
  for (const auto& [by, step] : closed_)
    if (by == site) newest = std::max(newest, step);
  forgotten_.emplace(site, newest);
  again_.erase(site);
}

void RunModel::forget(SiteId site, State& state, std::map<SiteId, std::uint64_t>& carried) const {
  state.feedback.erase(site);
  carried[site] = 0;
  const auto since = again_.find(site);
  if (since == again_.end()) return;
  for (const auto& [step, made] : since->second) {
    if (!made.closed) continue;
    auto& r = state.feedback[site];
    r.resize(elements_);
    for (std::size_t i = 0; i < elements_; ++i) r[i] += made.pseudo_gradient[i];
    carried[site] += made.tokens;
  }
}

RunModel::State RunModel::after(std::uint64_t last, const std::map<std::uint64_t, Record>& records,
                                std::span<const SiteId> sites,
                                std::vector<std::string>& wrong) const {
  State state;
  auto& [agreed, feedback] = state;
  agreed.resize(elements_);
  std::vector<double> momentum(elements_);
  for (std::size_t i = 0; i < elements_; ++i) agreed[i] = static_cast<double>(initial_value(i));
  std::map<SiteId, std::uint64_t> carried;
  const bool exact_codec = codec_ == compress::CodecId::none;
  for (const auto& [k, record] : records) {
    if (k > last) break;
    std::vector<double> delta(elements_);
    const double total = static_cast<double>(record.tokens());
    for (const auto site : sites) {
      if (forgotten_.count({site, k - 1}) > 0) forget(site, state, carried);
      const auto made = made_.find({site, k});
      const auto* part = record.part_of(site);
      if (made == made_.end()) {
        if (part) wrong.push_back(fmt::format("record {} names s{}, which made nothing", k, site));
        continue;
      }
      // A contribution that never closed (its gateway crashed) is no contribution, unless a record
      // names it; the ranks made it again, or they crashed too and its tokens are lost. Whether it
      // closed is known by its tokens being in a record, now or carried.
      auto& r = feedback[site];
      r.resize(elements_);
      if (part == nullptr) {
        if (closed_.count({site, k}) > 0) {
          for (std::size_t i = 0; i < elements_; ++i) r[i] += made->second.pseudo_gradient[i];
          carried[site] += made->second.tokens;
        }
        continue;
      }
      const auto expected = made->second.tokens + carried[site];
      if (part->tokens != expected)
        wrong.push_back(fmt::format("record {} gives s{} {} tokens, it made {}", k, site,
                                    part->tokens, expected));
      carried[site] = 0;
      const double weight = total > 0 ? static_cast<double>(part->tokens) / total
                                      : 1.0 / static_cast<double>(record.parts.size());
      for (std::size_t i = 0; i < elements_; ++i) {
        const double quantity = made->second.pseudo_gradient[i] + r[i];
        double decoded = quantity;
        if (!exact_codec) {
          // bf16 keeps eight bits: nearest, ties to even. The remainder stays as feedback.
          const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(quantity));
          decoded = static_cast<double>(
              std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u));
        }
        r[i] = quantity - decoded;
        delta[i] += weight * decoded;
      }
    }
    for (std::size_t i = 0; i < elements_; ++i) {
      if (rule_.has_momentum()) {
        momentum[i] = static_cast<double>(rule_.momentum) * momentum[i] + delta[i];
        agreed[i] -= static_cast<double>(rule_.rate) *
                     (delta[i] + static_cast<double>(rule_.momentum) * momentum[i]);
      } else {
        agreed[i] -= delta[i];
      }
    }
  }
  // A state of before, fetched anew.
  for (const auto& [site, step] : forgotten_)
    if (step >= last) forget(site, state, carried);
  return state;
}

}  // namespace isthmus::inter::sim
