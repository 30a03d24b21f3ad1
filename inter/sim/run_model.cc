#include "inter/sim/run_model.h"

#include <fmt/format.h>

#include <bit>

#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {

void RunModel::contributed(SiteId site, std::uint64_t life, std::uint64_t step,
                           std::span<const float> base, std::span<const float> parameters,
                           std::uint64_t tokens) {
  auto& made = made_[{site, life}][step];
  made = Made{};
  made.tokens = tokens;
  made.pseudo_gradient.resize(base.size());
  for (std::size_t i = 0; i < base.size(); ++i)
    made.pseudo_gradient[i] = static_cast<double>(base[i]) - static_cast<double>(parameters[i]);
}

void RunModel::closed(SiteId site, std::uint64_t life, std::uint64_t step) {
  auto& steps = made_[{site, life}];
  if (const auto made = steps.find(step); made != steps.end()) made->second.closed = true;
}

void RunModel::held(SiteId site, std::uint64_t life, std::uint64_t step,
                    const security::Digest& root) {
  if (maker({.site = site, .root = root, .tokens = 0, .base = {}}, step) != nullptr) return;
  auto& steps = made_[{site, life}];
  const auto made = steps.find(step);
  if (made == steps.end()) return;
  made->second.closed = true;
  made->second.root = root;
}

void RunModel::give_up_after(std::uint64_t step) {
  for (auto& [life, steps] : made_)
    for (auto& [k, made] : steps)
      if (k > step) made.closed = false;
}

const std::pair<const RunModel::Life, std::map<std::uint64_t, RunModel::Made>>* RunModel::maker(
    const Part& part, std::uint64_t step) const {
  for (auto life = made_.lower_bound({part.site, 0});
       life != made_.end() && life->first.first == part.site; ++life)
    if (const auto made = life->second.find(step);
        made != life->second.end() && made->second.root == part.root)
      return &*life;
  return nullptr;
}

RunModel::State RunModel::after(std::uint64_t last, const std::map<std::uint64_t, Record>& records,
                                const Lives& lives, std::vector<std::string>& wrong) const {
  State state;
  auto& agreed = state.agreed;
  agreed.resize(elements_);
  std::vector<double> momentum(elements_);
  for (std::size_t i = 0; i < elements_; ++i) agreed[i] = static_cast<double>(initial_value(i));
  std::map<Life, Riding> riding;
  for (const auto& [life, steps] : made_) riding[life].feedback.resize(elements_);
  const bool exact_codec = codec_ == compress::CodecId::none;
  for (const auto& [k, record] : records) {
    if (k > last) break;
    std::vector<double> delta(elements_);
    const double total = static_cast<double>(record.tokens());
    // In the order of the sites, as the record's sum is.
    for (const auto& part : record.parts) {
      const auto* life = maker(part, k);
      if (life == nullptr) {
        wrong.push_back(fmt::format("record {} names what s{} did not make", k, part.site));
        continue;
      }
      const auto& made = life->second.at(k);
      auto& [r, carried] = riding.at(life->first);
      const auto expected = made.tokens + std::exchange(carried, 0);
      if (part.tokens != expected)
        wrong.push_back(fmt::format("record {} gives s{} {} tokens, it made {}", k, part.site,
                                    part.tokens, expected));
      const double weight = total > 0 ? static_cast<double>(part.tokens) / total
                                      : 1.0 / static_cast<double>(record.parts.size());
      for (std::size_t i = 0; i < elements_; ++i) {
        const double quantity = made.pseudo_gradient[i] + r[i];
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
    // What was closed and is not named rides on. What never closed is no contribution: the ranks
    // made it again, or they crashed too and its tokens are lost.
    for (const auto& [life, steps] : made_) {
      const auto made = steps.find(k);
      if (made == steps.end() || !made->second.closed) continue;
      const auto* part = record.part_of(life.first);
      if (part != nullptr && part->root == made->second.root) continue;
      auto& [r, carried] = riding.at(life);
      for (std::size_t i = 0; i < elements_; ++i) r[i] += made->second.pseudo_gradient[i];
      carried += made->second.tokens;
    }
    if (record.parts.empty()) continue;  // took sites in
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
  for (const auto& life : lives)
    if (const auto found = riding.find(life); found != riding.end())
      state.feedback[life.first] = std::move(found->second.feedback);
  return state;
}

}  // namespace isthmus::inter::sim
