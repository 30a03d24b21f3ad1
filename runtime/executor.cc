#include "runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "base/assert.h"

namespace isthmus::runtime {
namespace {

double seconds_between(std::chrono::steady_clock::time_point from,
                       std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

void* place_of_parameter(const Program& program, ValueId id, const ParameterPlaces& places) {
  const auto& value = program.value(id);
  const auto index = static_cast<std::size_t>(value.parameter);
  if (value.kind == ValueKind::gradient) return places.gradients[index];
  return id == program.parameters[index].master ? places.masters[index] : places.operands[index];
}

// `places`: per value.
TensorView view_at(const Program& program, const std::vector<void*>& places, ValueId id) {
  if (id == kNoValue) return {};
  const auto& value = program.value(id);
  return {places[static_cast<std::size_t>(id)], value.dtype, value.shape};
}

BoundOp bound_of(const Program& program, const std::vector<void*>& places, const Op& op) {
  BoundOp bound{op, {}, {}};
  for (const auto id : op.inputs) bound.inputs.push_back(view_at(program, places, id));
  for (const auto id : op.outputs) bound.outputs.push_back(view_at(program, places, id));
  return bound;
}

PreparedOp prepare(const BoundOp& bound, CpuDevice& device) {
  const auto& row = row_of(bound.op.kind);
  return (bound.op.pass == Pass::forward ? row.forward_on_cpu : row.backward_on_cpu)(bound, device);
}

}  // namespace

CpuExecutor::CpuExecutor(Program program, const Plan& plan, std::span<std::byte> arena,
                         const ParameterPlaces& parameters, CpuDevice& device)
    : program_(std::move(program)), device_(device) {
  ISTHMUS_ASSERT(arena.size() >= plan.arena_bytes);
  for (std::size_t v = 0; v < program_.values.size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    const auto& value = program_.values[v];
    if (value.parameter >= 0) {
      places_.push_back(place_of_parameter(program_, id, parameters));
    } else if (lives_in_arena(value)) {
      places_.push_back(plan.offsets[v] == kNoOffset ? nullptr : arena.data() + plan.offsets[v]);
    } else if (value.kind == ValueKind::kept) {
      const auto at = std::find(program_.kept.begin(), program_.kept.end(), id);
      places_.push_back(parameters.kept[static_cast<std::size_t>(at - program_.kept.begin())]);
    } else {
      const auto& memory = own_.emplace(id, AlignedMemory(value.bytes())).first->second;
      places_.push_back(memory.bytes().data());
    }
  }
  for (const auto& op : program_.once) prepare(bound_of(program_, places_, op), device_)();
  for (const auto& op : program_.ops)
    prepared_.push_back(prepare(bound_of(program_, places_, op), device_));
  find_cleared();
  seconds_.assign(program_.ops.size(), 0.0);
}

void CpuExecutor::find_cleared() {
  std::set<ValueId> set;
  for (const auto& op : program_.ops)
    for (std::size_t i = 0; i < op.outputs.size(); ++i)
      if ((op.sets_first & bit(i)) != 0) set.insert(op.outputs[i]);
  for (const auto& parameter : program_.parameters)
    if (parameter.gradient != kNoValue && !set.contains(parameter.gradient)) {
      const auto view = view_of(parameter.gradient);
      cleared_.emplace_back(view.f32(), static_cast<std::size_t>(view.elements()));
    }
}

TensorView CpuExecutor::view_of(ValueId id) const { return view_at(program_, places_, id); }

std::span<const std::int32_t> CpuExecutor::loads() const {
  const auto view = view_of(program_.loads);
  return {view.i32(), static_cast<std::size_t>(view.elements())};
}

std::span<std::int32_t> CpuExecutor::ints(ValueId id) {
  ISTHMUS_ASSERT(id != kNoValue);
  return own_.at(id).of<std::int32_t>();
}

std::span<const float> CpuExecutor::logits() const {
  const auto view = view_of(program_.logits);
  return {view.f32(), static_cast<std::size_t>(view.elements())};
}

BatchLoss CpuExecutor::run(MicroBatch micro_batch) {
  device_.loss = {};
  device_.router_losses = {};
  device_.first_micro_batch = micro_batch == MicroBatch::first;
  if (device_.first_micro_batch)
    for (const auto& gradient : cleared_) device_.fill_zero(gradient);
  if (!measuring_) {
    for (const auto& op : prepared_) op();
    return device_.loss;
  }
  auto before = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < prepared_.size(); ++i) {
    prepared_[i]();
    const auto after = std::chrono::steady_clock::now();
    seconds_[i] += seconds_between(before, after);
    before = after;
  }
  ++measured_runs_;
  return device_.loss;
}

StandaloneExecutor::StandaloneExecutor(Program program, const ParameterPlaces& places,
                                       CpuDevice& device)
    : plan(plan_memory(program)),
      arena(plan.arena_bytes),
      executor(std::move(program), plan, arena.bytes(), places, device) {}

std::size_t working_bytes(const Program& program, const Plan& plan, std::size_t workers) {
  ThreadPool nobody({-1});
  auto device = CpuDevice::counted(nobody, workers);
  // Ops ask whether a value is there, and look at none before they run.
  alignas(kPlaceAlignment) std::byte somewhere[kPlaceAlignment] = {};
  std::vector<void*> places;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    const bool is_nowhere = lives_in_arena(program.values[v]) && plan.offsets[v] == kNoOffset;
    places.push_back(is_nowhere ? nullptr : somewhere);
  }
  for (const auto& op : program.ops) prepare(bound_of(program, places, op), device);
  return device.working_bytes();
}

std::vector<OpTime> op_times(const CpuExecutor& executor) {
  std::vector<OpTime> times;
  const auto& program = executor.program();
  const auto runs = executor.measured_runs();
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto& op = program.ops[i];
    const auto name = name_of(op);
    auto at =
        std::find_if(times.begin(), times.end(), [&](const auto& t) { return t.name == name; });
    if (at == times.end()) at = times.insert(times.end(), OpTime{name});
    at->calls += runs;
    at->seconds += executor.seconds_by_op()[i];
    at->flops += flops(program, op) * static_cast<double>(runs);
    at->bytes_moved += bytes_moved(program, op) * static_cast<double>(runs);
  }
  return times;
}

}  // namespace isthmus::runtime
