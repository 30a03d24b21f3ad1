#include "inter/sim/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {

void RunModel::contributed(SiteId site, std::uint64_t step, std::span<const float> base,
                           std::span<const float> parameters, std::uint64_t tokens) {
  auto* again = made_again(site, step);
  auto& made = again != nullptr ? (*again)[step] : made_[{site, step}];
  made.tokens = tokens;
  made.pseudo_gradient.resize(base.size());
  for (std::size_t i = 0; i < base.size(); ++i)
    made.pseudo_gradient[i] = static_cast<double>(base[i]) - static_cast<double>(parameters[i]);
}

void RunModel::closed(SiteId site, std::uint64_t step) {
  auto* again = made_again(site, step);
  if (again == nullptr)
    closed_.emplace(site, step);
  else if (const auto made = again->find(step); made != again->end())
    made->second.closed = true;
}

void RunModel::restored(SiteId site, std::uint64_t step) {
  // What was made again would be carried next, and say so.
  if (made_again(site, step) == nullptr) closed_.emplace(site, step);
}

std::map<std::uint64_t, RunModel::Made>* RunModel::made_again(SiteId site, std::uint64_t step) {
  auto newest = wiped_.upper_bound({site, std::numeric_limits<std::uint64_t>::max()});
  if (newest == wiped_.begin()) return nullptr;
  --newest;
  return newest->first.first == site && newest->first.second >= step ? &newest->second : nullptr;
}

void RunModel::give_up_after(std::uint64_t step) {
  std::erase_if(closed_, [&](const auto& made) { return made.second > step; });
}

void RunModel::wiped(SiteId site) {
  std::uint64_t newest = 0;
  for (const auto& [by, step] : closed_)
    if (by == site) newest = std::max(newest, step);
  wiped_[{site, newest}].clear();
}

void RunModel::forget(SiteId site, std::uint64_t step, State& state,
                      std::map<SiteId, std::uint64_t>& carried) const {
  const auto since = wiped_.find({site, step});
  if (since == wiped_.end()) return;
  state.feedback.erase(site);
  carried[site] = 0;
  for (const auto& [again, made] : since->second) {
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
      forget(site, k - 1, state, carried);
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
  for (const auto& [of, again] : wiped_)
    if (of.second >= last) forget(of.first, of.second, state, carried);
  return state;
}

}  // namespace isthmus::inter::sim
