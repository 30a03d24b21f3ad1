#include "runtime/planner.h"

#include <algorithm>
#include <numeric>

#include "runtime/op_table.h"

namespace isthmus::runtime {
namespace {

std::size_t rounded(std::size_t bytes) {
  return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment;
}

// Values that an op may compute in place are one place: place[v] is the value that stands for it.
std::vector<std::size_t> join_in_place(const Program& program, std::vector<Lifetime>& lives) {
  std::vector<std::size_t> place(program.values.size());
  std::iota(place.begin(), place.end(), 0);
  for (std::size_t at = 0; at < program.ops.size(); ++at) {
    const auto& op = program.ops[at];
    const auto& row = row_of(op.kind);
    const int over = op.pass == Pass::forward ? row.forward_over : row.backward_over;
    if (over < 0 || op.accumulates(0) || op.outputs[0] == kNoValue) continue;
    const auto input = op.inputs[static_cast<std::size_t>(over)];
    const auto output = static_cast<std::size_t>(op.outputs[0]);
    if (input == kNoValue || !lives_in_arena(program.value(input))) continue;
    const auto root = place[static_cast<std::size_t>(input)];
    const auto& from = program.value(input);
    const auto& to = program.values[output];
    if (lives[root].last != at || from.bytes() != to.bytes() || from.dtype != to.dtype) continue;
    place[output] = root;
    lives[root].last = std::max(at, lives[output].last);
  }
  return place;
}

}  // namespace

bool lives_in_arena(const Value& value) {
  return (value.kind == ValueKind::activation || value.kind == ValueKind::gradient) &&
         value.parameter < 0;
}

std::vector<Lifetime> lifetimes(const Program& program) {
  std::vector<Lifetime> lives(program.values.size());
  for (std::size_t at = 0; at < program.ops.size(); ++at)
    for (const auto* ids : {&program.ops[at].inputs, &program.ops[at].outputs})
      for (const auto id : *ids) {
        if (id == kNoValue) continue;
        auto& life = lives[static_cast<std::size_t>(id)];
        life.first = std::min(life.first, at);
        life.last = std::max(life.last, at);
      }
  for (const auto id : {program.logits, program.loads})  // read by the caller
    if (id != kNoValue) lives[static_cast<std::size_t>(id)].last = program.ops.size();
  return lives;
}

Plan plan_memory(const Program& program) {
  auto lives = lifetimes(program);
  const auto place = join_in_place(program, lives);
  Plan plan;
  plan.offsets.assign(program.values.size(), kNoOffset);

  std::vector<std::size_t> order;
  for (std::size_t v = 0; v < program.values.size(); ++v) {
    if (!lives_in_arena(program.values[v]) || lives[v].first > lives[v].last) continue;
    plan.value_bytes += program.values[v].bytes();
    if (place[v] == v) order.push_back(v);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return program.values[a].bytes() > program.values[b].bytes();
  });

  std::vector<std::size_t> placed;  // ascending offset
  for (const auto v : order) {
    const auto bytes = rounded(program.values[v].bytes());
    std::size_t offset = 0;
    for (const auto other : placed) {
      if (lives[other].last < lives[v].first || lives[v].last < lives[other].first) continue;
      if (offset + bytes <= plan.offsets[other]) break;
      offset = std::max(offset, plan.offsets[other] + rounded(program.values[other].bytes()));
    }
    plan.offsets[v] = offset;
    plan.arena_bytes = std::max(plan.arena_bytes, offset + bytes);
    const auto after = [&](std::size_t o, std::size_t p) { return o < plan.offsets[p]; };
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset, after), v);
  }
  for (std::size_t v = 0; v < program.values.size(); ++v)
    if (place[v] != v) plan.offsets[v] = plan.offsets[place[v]];
  return plan;
}

}  // namespace isthmus::runtime
