// The executor walks the list of a program on a device. Everything is placed, planned and allocated
// when it is made; a run only computes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "runtime/batch_loss.h"
#include "runtime/cpu_device.h"
#include "runtime/op_table.h"
#include "runtime/op_time.h"
#include "runtime/planner.h"
#include "runtime/program.h"

namespace isthmus::runtime {

// Where the parameters of a program are, one entry each, by index in Program::parameters, and what
// is kept of texts, by index in Program::kept.
struct ParameterPlaces {
  std::vector<void*> masters;
  std::vector<void*> operands;
  std::vector<void*> gradients;
  std::vector<void*> kept;
};

// Of a step. In the first one what is in the gradients of parameters counts as zero.
enum class MicroBatch : std::uint8_t { first, later };

class CpuExecutor {
 public:
  // `arena` has plan.arena_bytes at least; executors that share one do not run at the same time.
  // Arena, parameters and device outlive the executor.
  CpuExecutor(Program program, const Plan& plan, std::span<std::byte> arena,
              const ParameterPlaces& parameters, CpuDevice& device);

  // Written by the caller before a run.
  std::span<std::int32_t> tokens() { return ints(program_.tokens); }
  std::span<std::int32_t> targets() { return ints(program_.targets); }
  std::span<std::int32_t> document_starts() { return ints(program_.document_starts); }
  std::span<std::int32_t> dropout_keys() { return ints(program_.dropout_keys); }
  std::span<std::int32_t> texts() { return ints(program_.texts); }
  std::span<std::int32_t> positions() { return ints(program_.positions); }
  // Of a program that ends in logits, after a run.
  std::span<const float> logits() const;

  // Of a program that has them, after a run.
  std::span<const std::int32_t> loads() const;
  // Returns the loss of this run; gradients of parameters have been added to.
  BatchLoss run(MicroBatch micro_batch = MicroBatch::later);

  const Program& program() const { return program_; }

  // While on, each op is timed, at the cost of two clock readings.
  void measure(bool on) { measuring_ = on; }
  const std::vector<double>& seconds_by_op() const { return seconds_; }  // in list order
  std::int64_t measured_runs() const { return measured_runs_; }

 private:
  TensorView view_of(ValueId id) const;
  void find_cleared();
  std::span<std::int32_t> ints(ValueId id);

  Program program_;
  CpuDevice& device_;
  std::vector<void*> places_;              // per value
  std::map<ValueId, AlignedMemory> own_;   // inputs and states
  std::vector<PreparedOp> prepared_;       // in list order
  std::vector<std::span<float>> cleared_;  // gradients that no op sets
  std::vector<double> seconds_;
  std::int64_t measured_runs_ = 0;
  bool measuring_ = false;
};

// One with an arena of its own, for a list that others do not share theirs with.
struct StandaloneExecutor {
  StandaloneExecutor(Program program, const ParameterPlaces& places, CpuDevice& device);

  Plan plan;
  AlignedMemory arena;
  CpuExecutor executor;
};

// What the ops of a program would reserve on a device of so many threads, with the products'
// panels; nothing of it is allocated.
std::size_t working_bytes(const Program& program, const Plan& plan, std::size_t workers);

// Sums per name, in order of first appearance in the list.
std::vector<OpTime> op_times(const CpuExecutor& executor);

}  // namespace isthmus::runtime
