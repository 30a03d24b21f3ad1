#include "runtime/backward.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/assert.h"
#include "runtime/op_table.h"

namespace isthmus::runtime {
namespace {

class Walk {
 public:
  explicit Walk(Program forward) : p_(std::move(forward)) {
    const auto values = p_.values.size();
    needed_.assign(values, false);
    gradient_.assign(values, kNoValue);
    producer_.assign(values, -1);
    consumers_.resize(values);
    for (std::size_t i = 0; i < p_.ops.size(); ++i) {
      for (const auto id : p_.ops[i].inputs)
        if (id != kNoValue) consumers_[index(id)].push_back(static_cast<int>(i));
      for (const auto id : p_.ops[i].outputs)
        if (id != kNoValue) producer_[index(id)] = static_cast<int>(i);
    }
    make_parameter_gradients();
    find_needed();
  }

  Program derive() {
    forward_ = std::exchange(p_.ops, {});
    std::vector<Op> kept;
    for (const auto& op : forward_)
      if (!(row_of(op.kind).backward_is_forward && wants_gradient(op))) kept.push_back(op);
    for (auto i = forward_.size(); i-- > 0;)
      if (wants_gradient(forward_[i])) walk(i);
    kept.insert(kept.end(), std::make_move_iterator(p_.ops.begin()),
                std::make_move_iterator(p_.ops.end()));
    p_.ops = std::move(kept);
    return std::move(p_);
  }

 private:
  static std::size_t index(ValueId id) { return static_cast<std::size_t>(id); }

  void make_parameter_gradients() {
    for (auto& parameter : p_.parameters) {
      if (!parameter.trains) continue;
      Value gradient = p_.value(parameter.master);
      gradient.name += " gradient";
      gradient.kind = ValueKind::gradient;
      parameter.gradient = p_.add(std::move(gradient));
      for (const auto id : {parameter.master, parameter.operand}) {
        needed_[index(id)] = true;
        gradient_[index(id)] = parameter.gradient;
      }
    }
  }

  void find_needed() {
    for (const auto& op : p_.ops)
      if (wants_gradient(op))
        for (const auto id : op.outputs)
          if (id != kNoValue) needed_[index(id)] = true;
  }

  bool wants_gradient(const Op& op) const {
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      if (wants_gradient(op, i)) return true;
    return false;
  }
  bool wants_gradient(const Op& op, std::size_t input) const {
    return (row_of(op.kind).gradients & bit(input)) != 0 && op.inputs[input] != kNoValue &&
           needed_[index(op.inputs[input])];
  }

  void walk(std::size_t i) {
    const auto& op = forward_[i];
    const auto& row = row_of(op.kind);
    const auto gradient = row.backward_is_forward ? kNoValue : gradient_[index(op.outputs[0])];
    if (!row.backward_is_forward && gradient == kNoValue) return;  // the loss does not depend on it
    const auto at = p_.ops.size();
    if (input_is_remade(i, gradient)) {
      emit_backward(op, gradient, bit(0));
      waiting_[maker_of(op)].push_back({&op, gradient});
    } else if ((row.gradients & ~row.identity_gradients) != 0) {
      emit_backward(op, gradient, ~row.identity_gradients);
    }
    pass_through(op, gradient, row.identity_gradients);
    const auto waits = waiting_.find(static_cast<int>(i));  // for what this op has made
    if (waits == waiting_.end()) return;
    std::map<ValueId, ValueId> again;
    again[op.outputs[0]] = new_value(op.outputs[0], ValueKind::activation, " again");
    p_.ops[at].outputs.back() = again[op.outputs[0]];
    for (const auto& [linear, its_gradient] : waits->second) {
      auto later = *linear;
      if (!again.contains(later.inputs[0])) repeat(producer_[index(later.inputs[0])], again);
      later.inputs[0] = again[later.inputs[0]];
      emit_backward(later, its_gradient, bit(1));
    }
  }

  // The forward op once more, on what has been made again.
  void repeat(int at, std::map<ValueId, ValueId>& again) {
    auto op = forward_[static_cast<std::size_t>(at)];
    again[op.outputs[0]] = new_value(op.outputs[0], ValueKind::activation, " again");
    op.inputs[0] = again[op.inputs[0]];
    op.outputs[0] = again[op.outputs[0]];
    p_.ops.push_back(std::move(op));
  }

  // The op whose backward can make input 0 of `op` again, or what a repetition makes that of; -1:
  // there is none.
  int maker_of(const Op& op) const {
    auto value = op.inputs[0];
    auto at = producer_[index(value)];
    if (at >= 0 && row_of(forward_[static_cast<std::size_t>(at)].kind).repeats) {
      value = forward_[static_cast<std::size_t>(at)].inputs[0];
      at = producer_[index(value)];
    }
    if (at < 0) return -1;
    const auto& maker = forward_[static_cast<std::size_t>(at)];
    return row_of(maker.kind).backward_remakes && maker.outputs[0] == value ? at : -1;
  }

  // Whether all that read a value need it for gradients of weights alone.
  bool is_read_for_weights(ValueId value) const {
    return std::ranges::all_of(consumers_[index(value)], [&](int c) {
      const auto& reader = forward_[static_cast<std::size_t>(c)];
      if (reader.inputs[0] != value) return false;
      const auto& row = row_of(reader.kind);
      return row.crosswise || (row.repeats && is_read_for_weights(reader.outputs[0]));
    });
  }

  // By the backward of its maker, where all that read it can wait for that. What comes before it
  // must not add to what the weight's gradient is yet to be made of: by the maker itself, where
  // that comes next, or by any, unless `gradient` is this op's alone.
  bool input_is_remade(std::size_t i, ValueId gradient) const {
    const auto& op = forward_[i];
    if (!row_of(op.kind).crosswise || !wants_gradient(op, 0) || !wants_gradient(op, 1))
      return false;
    const auto made_at = maker_of(op);
    if (made_at < 0) return false;
    const auto& maker = forward_[static_cast<std::size_t>(made_at)];
    if (!is_read_for_weights(maker.outputs[0])) return false;
    const auto& consumers = consumers_[index(maker.outputs[0])];
    return made_at + 1 == static_cast<int>(i) && consumers.size() == 1
               ? gradient_[index(maker.inputs[0])] != gradient
               : std::ranges::count(gradient_, gradient) == 1;
  }

  // The gradients of `inputs`, as far as they are wanted.
  void emit_backward(const Op& op, ValueId gradient, std::uint32_t inputs = ~std::uint32_t{0}) {
    const auto& row = row_of(op.kind);
    const auto makes = [&](std::size_t i) {
      return (inputs & bit(i)) != 0 && wants_gradient(op, i);
    };
    const auto reads = [&](std::size_t i) {
      return (row.backward_inputs & bit(i)) != 0 && (!row.crosswise || i > 1 || makes(1 - i));
    };
    Op b;
    b.kind = op.kind;
    b.pass = Pass::backward;
    b.attributes = op.attributes;
    for (std::size_t i = 0; i < op.inputs.size(); ++i)
      b.inputs.push_back(reads(i) ? op.inputs[i] : kNoValue);
    for (std::size_t i = 0; i < op.outputs.size(); ++i)
      b.inputs.push_back((row.backward_outputs & bit(i)) != 0 ? op.outputs[i] : kNoValue);
    b.inputs.push_back(gradient);

    std::vector<std::pair<ValueId, ValueId>> sums;  // (gradient, its new part)
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (!makes(i)) {
        b.outputs.push_back(kNoValue);
        continue;
      }
      const auto input = op.inputs[i];
      const auto sum = gradient_[index(input)];
      const bool is_parameter = p_.value(input).kind == ValueKind::parameter;
      if (sum == kNoValue) {
        const auto made = new_gradient(input);
        gradient_[index(input)] = made;
        b.outputs.push_back(made);
      } else if (is_parameter || row.adds(p_.value(sum).dtype)) {
        b.outputs.push_back(sum);
        b.accumulate |= bit(i);
        if (is_parameter && written_.insert(sum).second && (row.sets_parameters & bit(i)) != 0)
          b.sets_first |= bit(i);
      } else {
        b.outputs.push_back(new_gradient(input));
        sums.emplace_back(sum, b.outputs.back());
      }
    }
    if (row.backward_is_forward)
      b.outputs.insert(b.outputs.end(), op.outputs.begin(), op.outputs.end());
    if (row.backward_remakes) b.outputs.push_back(kNoValue);
    p_.ops.push_back(std::move(b));
    for (const auto& [whole, part] : sums) append_sum(whole, part);
  }

  void pass_through(const Op& op, ValueId gradient, std::uint32_t inputs) {
    ValueId sharer = kNoValue;  // the input that took `gradient` itself
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if ((inputs & bit(i)) == 0 || !wants_gradient(op, i)) continue;
      const auto input = op.inputs[i];
      if (gradient_[index(input)] != kNoValue) {
        append_sum(gradient_[index(input)], gradient);
      } else if (gradient_dtype(input) == p_.value(gradient).dtype &&
                 (sharer == kNoValue || may_share(input, sharer))) {
        gradient_[index(input)] = gradient;
        sharer = sharer == kNoValue ? input : sharer;
      } else {
        const auto copy = new_gradient(input);
        gradient_[index(input)] = copy;
        append(OpKind::convert, {gradient}, copy, false);
      }
    }
  }

  // `first` will be added to by its other consumers and handed on by its producer. `second` may
  // share its gradient if all of its own reads come before that: it is read by its producer's
  // backward alone, which the walk must reach earlier.
  bool may_share(ValueId second, ValueId first) const {
    if (second == first || consumers_[index(second)].size() != 1) return false;
    const auto reads_at = producer_[index(second)];
    if (reads_at <= producer_[index(first)]) return false;
    const auto own = consumers_[index(second)].front();
    return std::all_of(consumers_[index(first)].begin(), consumers_[index(first)].end(),
                       [&](int c) { return c == own || c < reads_at; });
  }

  DType gradient_dtype(ValueId of) const {
    const auto at = producer_[index(of)];
    if (at < 0) return p_.value(of).dtype;
    const auto& op = forward_[static_cast<std::size_t>(at)];
    const auto wanted = row_of(op.kind).gradient_dtype;
    if (wanted == GradientDType::of_operand) return p_.value(op.inputs[0]).dtype;
    return wanted == GradientDType::f32 ? DType::f32 : p_.value(of).dtype;
  }

  ValueId new_gradient(ValueId of) {
    const auto made = new_value(of, ValueKind::gradient, " gradient");
    p_.values.back().dtype = gradient_dtype(of);
    return made;
  }

  ValueId new_value(ValueId like, ValueKind kind, std::string_view suffix) {
    Value value = p_.value(like);
    value.name += suffix;
    value.kind = kind;
    return p_.add(std::move(value));
  }

  void append_sum(ValueId whole, ValueId part) { append(OpKind::add, {whole, part}, whole, true); }

  void append(OpKind kind, std::vector<ValueId> inputs, ValueId output, bool accumulate) {
    Op op;
    op.kind = kind;
    op.inputs = std::move(inputs);
    op.outputs = {output};
    op.accumulate = accumulate ? 1 : 0;
    p_.ops.push_back(std::move(op));
  }

  Program p_;
  std::vector<Op> forward_;
  // Indexed by the forward list's values.
  std::vector<bool> needed_;
  std::vector<ValueId> gradient_;
  std::set<ValueId> written_;  // gradients of parameters, so far
  // Linear layers whose weight gradients are yet to come, and the gradients of their outputs, by
  // the op that makes what comes into them.
  std::map<int, std::vector<std::pair<const Op*, ValueId>>> waiting_;
  std::vector<int> producer_;
  std::vector<std::vector<int>> consumers_;
};

}  // namespace

Program with_backward(Program forward) {
  ISTHMUS_ASSERT(forward.targets != kNoValue);
  return Walk(std::move(forward)).derive();
}

}  // namespace isthmus::runtime
