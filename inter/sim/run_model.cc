#include "inter/sim/run_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "inter/sim/synthetic_ranks.h"

namespace isthmus::inter::sim {
namespace {

// What was made for older steps seldom changes; where it does, all is made again.
constexpr std::uint64_t kUnsettled = 4;

// bf16 keeps eight bits: nearest, ties to even.
float as_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u);
}

// Of one block, in place.
void as_int8(std::span<float> block) {
  float most = 0;
  for (const auto value : block) most = std::max(most, std::abs(value));
  const float scale = most / 127;
  for (auto& value : block)
    value = scale == 0 ? 0 : std::clamp(std::nearbyint(value / scale), -127.0F, 127.0F) * scale;
}

}  // namespace

RunModel::RunModel(std::vector<std::size_t> tensors, OuterRule rule, compress::CodecId codec)
    : tensors_(std::move(tensors)),
      elements_(std::accumulate(tensors_.begin(), tensors_.end(), std::size_t{0})),
      rule_(rule),
      codec_(codec),
      settled_(beginning()) {}

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

// What others make of these values once they are coded.
std::vector<float> RunModel::decoded(const std::vector<float>& quantity) const {
  constexpr std::size_t kBlock = 256;  // from the beginning of each tensor
  auto values = quantity;
  switch (codec_) {
    case compress::CodecId::none:
      break;
    case compress::CodecId::bf16:
      std::ranges::transform(values, values.begin(), as_bf16);
      break;
    case compress::CodecId::int8:
      std::span<float> rest(values);
      for (const auto elements : tensors_) {
        for (std::size_t at = 0; at < elements; at += kBlock)
          as_int8(rest.subspan(at, std::min(kBlock, elements - at)));
        rest = rest.subspan(elements);
      }
      break;
  }
  return values;
}

void RunModel::apply(std::uint64_t step, const Record& record, Progress& run) const {
  run.step = step;
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
    std::vector<float> quantity(elements_);
    for (std::size_t i = 0; i < elements_; ++i)
      quantity[i] = static_cast<float>(made.pseudo_gradient[i]) + static_cast<float>(r[i]);
    const auto sent = decoded(quantity);
    for (std::size_t i = 0; i < elements_; ++i) {
      r[i] = static_cast<double>(quantity[i] - sent[i]);  // what it kept back
      delta[i] += weight * static_cast<double>(sent[i]);
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
    for (std::size_t i = 0; i < elements_; ++i)
      r[i] = static_cast<double>(static_cast<float>(made->second.pseudo_gradient[i]) +
                                 static_cast<float>(r[i]));
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
