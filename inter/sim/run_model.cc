#include "inter/sim/run_model.h"

#include <fmt/format.h>

#include <bit>

#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {
namespace {

// What was made for older steps seldom changes; where it does, all is made again.
constexpr std::uint64_t kUnsettled = 4;

}  // namespace

RunModel::RunModel(std::size_t elements, OuterRule rule, compress::CodecId codec)
    : elements_(elements), rule_(rule), codec_(codec), settled_(beginning()) {}

RunModel::Progress RunModel::beginning() const {
  Progress run;
  run.agreed.resize(elements_);
  run.momentum.resize(elements_);
  for (std::size_t i = 0; i < elements_; ++i) run.agreed[i] = static_cast<double>(initial_value(i));
  return run;
}

void RunModel::changed(std::uint64_t step) {
  if (step <= settled_.step) settled_ = beginning();
}

void RunModel::contributed(SiteId site, std::uint64_t life, std::uint64_t step,
                           std::span<const float> base, std::span<const float> parameters,
                           std::uint64_t tokens) {
  changed(step);
  auto& made = made_[{site, life}][step];
  made = Made{};
  made.tokens = tokens;
  made.pseudo_gradient.resize(base.size());
  for (std::size_t i = 0; i < base.size(); ++i)
    made.pseudo_gradient[i] = static_cast<double>(base[i]) - static_cast<double>(parameters[i]);
}

void RunModel::closed(SiteId site, std::uint64_t life, std::uint64_t step) {
  auto& steps = made_[{site, life}];
  const auto made = steps.find(step);
  if (made == steps.end() || made->second.closed) return;
  changed(step);
  made->second.closed = true;
}

void RunModel::held(SiteId site, std::uint64_t life, std::uint64_t step,
                    const security::Digest& root) {
  if (maker({.site = site, .root = root, .tokens = 0, .base = {}}, step) != nullptr) return;
  auto& steps = made_[{site, life}];
  const auto made = steps.find(step);
  if (made == steps.end()) return;
  changed(step);
  made->second.closed = true;
  made->second.root = root;
}

void RunModel::give_up_after(std::uint64_t step) {
  changed(step + 1);
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
                                const Lives& lives, std::vector<std::string>& wrong) {
  auto run = last < settled_.step ? beginning() : settled_;
  for (const auto& [life, steps] : made_) run.riding[life].feedback.resize(elements_);
  for (auto next = records.upper_bound(run.step); next != records.end() && next->first <= last;
       ++next) {
    apply(next->first, next->second, run);
    if (run.step > settled_.step && run.step + kUnsettled == last) settled_ = run;
  }
  wrong.insert(wrong.end(), run.wrong.begin(), run.wrong.end());
  State state{.agreed = std::move(run.agreed), .feedback = {}};
  for (const auto& life : lives)
    if (const auto found = run.riding.find(life); found != run.riding.end())
      state.feedback[life.first] = std::move(found->second.feedback);
  return state;
}

void RunModel::apply(std::uint64_t step, const Record& record, Progress& run) const {
  run.step = step;
  const bool exact_codec = codec_ == compress::CodecId::none;
  std::vector<double> delta(elements_);
  const double total = static_cast<double>(record.tokens());
  // In the order of the sites, as the record's sum is.
  for (const auto& part : record.parts) {
    const auto* life = maker(part, step);
    if (life == nullptr) {
      run.wrong.push_back(fmt::format("record {} names what s{} did not make", step, part.site));
      continue;
    }
    const auto& made = life->second.at(step);
    auto& [r, carried] = run.riding.at(life->first);
    const auto expected = made.tokens + std::exchange(carried, 0);
    if (part.tokens != expected)
      run.wrong.push_back(fmt::format("record {} gives s{} {} tokens, it made {}", step, part.site,
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
    const auto made = steps.find(step);
    if (made == steps.end() || !made->second.closed) continue;
    const auto* part = record.part_of(life.first);
    if (part != nullptr && part->root == made->second.root) continue;
    auto& [r, carried] = run.riding.at(life);
    for (std::size_t i = 0; i < elements_; ++i) r[i] += made->second.pseudo_gradient[i];
    carried += made->second.tokens;
  }
  if (record.parts.empty()) return;  // took sites in
  for (std::size_t i = 0; i < elements_; ++i) {
    if (rule_.has_momentum()) {
      run.momentum[i] = static_cast<double>(rule_.momentum) * run.momentum[i] + delta[i];
      run.agreed[i] -= static_cast<double>(rule_.rate) *
                       (delta[i] + static_cast<double>(rule_.momentum) * run.momentum[i]);
    } else {
      run.agreed[i] -= delta[i];
    }
  }
}

}  // namespace isthmus::inter::sim
