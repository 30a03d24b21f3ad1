#include "runtime/recompute.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"

namespace isthmus::runtime {
namespace {

std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }

class Recomputation {
 public:
  explicit Recomputation(Program program) : p_(std::move(program)) {
    const auto first =
        std::ranges::find_if(p_.ops, [](const Op& op) { return op.pass == Pass::backward; });
    backward_ = static_cast<std::size_t>(first - p_.ops.begin());
  }

  Program derive() {
    std::vector<std::vector<Op>> before(p_.ops.size());  // what is inserted before each op
    for (std::size_t b = 0; b + 1 < p_.blocks.size(); ++b) {
      const auto at = find_missed(p_.blocks[b]);
      if (at == p_.ops.size()) continue;
      ISTHMUS_ASSERT(before[at].empty());  // each block is missed by its own backward
      before[at] = make_again(p_.blocks[b]);
    }
    std::vector<Op> all;
    for (std::size_t at = 0; at < p_.ops.size(); ++at) {
      std::ranges::move(before[at], std::back_inserter(all));
      all.push_back(std::move(p_.ops[at]));
    }
    p_.ops = std::move(all);
    return std::move(p_);
  }

 private:
  // Marks what is made in a block, for itself and for backward alone. Returns the first op that
  // misses it; the end: none.
  std::size_t find_missed(const Block& block) {
    missed_.assign(p_.values.size(), false);
    std::vector<bool> passes(p_.values.size(), false);  // made here, and not kept
    for (auto at = block.first; at < block.end; ++at)
      for (const auto id : p_.ops[at].outputs)
        if (id != kNoValue) passes[index(id)] = true;
    for (auto at = block.end; at < backward_; ++at)
      for (const auto id : p_.ops[at].inputs)
        if (id != kNoValue) passes[index(id)] = false;
    // What makes a value that is kept, as a norm at the end of a block, need not be done again for
    // the little that it makes besides.
    for (auto at = block.first; at < block.end; ++at)
      if (std::ranges::any_of(p_.ops[at].outputs,
                              [&](ValueId id) { return id != kNoValue && !passes[index(id)]; }))
        for (const auto id : p_.ops[at].outputs)
          if (id != kNoValue) passes[index(id)] = false;
    if (p_.loads != kNoValue) passes[index(p_.loads)] = false;  // each block writes its part
    auto first = p_.ops.size();
    for (auto at = backward_; at < p_.ops.size(); ++at)
      for (const auto id : p_.ops[at].inputs)
        if (id != kNoValue && passes[index(id)]) {
          missed_[index(id)] = true;
          first = std::min(first, at);
        }
    for (auto at = block.end; at-- > block.first;) {
      if (!makes_missed(p_.ops[at])) continue;
      for (const auto id : p_.ops[at].inputs)
        if (id != kNoValue && passes[index(id)]) missed_[index(id)] = true;
    }
    return first;
  }

  bool makes_missed(const Op& op) const {
    return std::ranges::any_of(op.outputs,
                               [&](ValueId id) { return id != kNoValue && missed_[index(id)]; });
  }

  // The ops that make it once more, with values of their own, which backward reads instead.
  std::vector<Op> make_again(const Block& block) {
    std::vector<ValueId> again(p_.values.size(), kNoValue);
    const auto rename = [&](std::vector<ValueId>& ids) {
      for (auto& id : ids)
        if (id != kNoValue && index(id) < again.size() && again[index(id)] != kNoValue)
          id = again[index(id)];
    };
    std::vector<Op> ops;
    for (auto at = block.first; at < block.end; ++at) {
      if (!makes_missed(p_.ops[at])) continue;
      auto op = p_.ops[at];
      for (const auto id : op.outputs) {
        if (id == kNoValue || id == p_.loads) continue;  // which it writes again, as it was
        auto value = p_.value(id);
        ISTHMUS_ASSERT(value.kind == ValueKind::activation);
        value.name += " again";
        again[index(id)] = p_.add(std::move(value));
      }
      rename(op.inputs);
      rename(op.outputs);
      ops.push_back(std::move(op));
    }
    for (auto at = backward_; at < p_.ops.size(); ++at) rename(p_.ops[at].inputs);
    return ops;
  }

  Program p_;
  std::size_t backward_ = 0;  // the first op of the backward pass
  std::vector<bool> missed_;  // per value
};

}  // namespace

Program with_recomputation(Program program) { return Recomputation(std::move(program)).derive(); }

}  // namespace isthmus::runtime
