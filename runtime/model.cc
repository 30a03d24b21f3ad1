#include "runtime/model.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/assert.h"
#include "base/counted.h"
#include "base/machine_memory.h"
#include "kernels/adamw.h"
#include "kernels/bf16.h"
#include "kernels/sum_of_squares.h"
#include "runtime/executor.h"
#include "runtime/family.h"
#include "runtime/initialisation.h"
#include "runtime/op_table.h"
#include "runtime/rate_ranges.h"
#include "runtime/training_memory.h"
#include "runtime/training_program.h"

namespace isthmus::runtime {
namespace {

constexpr std::int64_t kLogitsLengthMin = 32;  // tokens
constexpr std::size_t kCopyBlock = 65536;      // elements per task
constexpr double kClipEps = 1e-6;              // as PyTorch's clip_grad_norm_

// Splits [0, elements) into tasks; body(first, count).
template <class Body>
void for_blocks(ThreadPool& pool, std::size_t elements, const Body& body) {
  pool.parallel_for((elements + kCopyBlock - 1) / kCopyBlock, [&](std::size_t task, std::size_t) {
    const auto first = task * kCopyBlock;
    body(first, std::min(kCopyBlock, elements - first));
  });
}

// As the model will be used: nothing is dropped.
BatchShape of_evaluation(BatchShape shape) {
  shape.router = {};
  shape.drops = false;
  return shape;
}

// The lists of one batch shape, and where their values go.
struct Lists {
  Lists(const ModelConfig& config, const FineTuning& tuning, const BatchShape& shape)
      : training(training_program(config, shape, tuning)),
        evaluation(build_program(config, tuning, of_evaluation(shape), Head::loss)),
        training_plan(plan_memory(training)),
        evaluation_plan(plan_memory(evaluation)) {}

  Program training, evaluation;
  Plan training_plan, evaluation_plan;
};

// The model alone; what its trainer keeps besides, the trainer counts.
Result<void> fits_in_memory(std::string_view what, double needed, std::string_view instead) {
  const auto present = static_cast<double>(machine_memory_bytes());
  if (needed < present) return {};
  return Error{ErrorCode::too_large,
               fmt::format("{} takes {:.1f} GiB of memory and this machine has {:.1f}; use {}",
                           what, needed / (1 << 30), present / (1 << 30), instead)};
}

class CpuModel final : public Model {
 public:
  CpuModel(const ModelConfig& config, const FineTuning& tuning, const BatchShape& shape,
           ThreadPool& pool, Lists lists)
      : config_(config),
        tuning_(tuning),
        shape_(shape),
        device_(pool),
        layout_(lay_out_parameters(lists.training)),
        rates_(rate_ranges(layout_, {})),
        parameters_(layout_.elements * sizeof(float)),
        gradients_(layout_.trained_elements * sizeof(float)),
        first_moments_(layout_.trained_elements * sizeof(float)),
        second_moments_(layout_.trained_elements * sizeof(float)),
        copies_(shape.precision == Precision::bf16 ? layout_.copy_elements() * sizeof(bf16_t) : 0),
        norm_scratch_(kernels::sum_of_squares_blocks(layout_.trained_elements)),
        arena_(std::max(lists.training_plan.arena_bytes, lists.evaluation_plan.arena_bytes)),
        places_(parameter_places()),
        training_(std::move(lists.training), lists.training_plan, arena_.bytes(), places_, device_),
        evaluation_(std::move(lists.evaluation), lists.evaluation_plan, arena_.bytes(), places_,
                    device_),
        flops_(runtime::flops(training_.program())),
        flops_per_target_(head_flops_per_target(training_.program())) {
    routing_.experts = static_cast<std::size_t>(config.experts);
    routing_.chosen.resize(routing_.experts * static_cast<std::size_t>(config.expert_layers()));
  }

  const ModelConfig& config() const override { return config_; }
  const FineTuning& fine_tuning() const override { return tuning_; }
  const BatchShape& shape() const override { return shape_; }
  std::span<const CanonicalTensor> tensors() const override { return layout_.tensors; }

  void initialise(std::uint64_t seed) override {
    for (const auto& tensor : layout_.tensors)
      if (!tensor.trains) initialise_one(tensor, seed);
    initialise_trained(seed);
  }
  void initialise_trained(std::uint64_t seed) override {
    for (const auto& tensor : layout_.tensors)
      if (tensor.trains) initialise_one(tensor, seed);
    device_.fill_zero(first_moments());
    device_.fill_zero(second_moments());
    updates_ = 0;
    parameters_changed();
  }

  std::span<float> parameters() override { return parameters_.of<float>(); }
  std::span<float> gradients() override {
    if (std::exchange(gradients_are_zero_, false)) device_.fill_zero(gradients_.of<float>());
    return gradients_.of<float>();
  }
  std::span<float> first_moments() override { return first_moments_.of<float>(); }
  std::span<float> second_moments() override { return second_moments_.of<float>(); }

  void parameters_changed() override {
    if (copies().empty()) return;
    const auto copy = [&](std::size_t from, std::size_t to, std::size_t elements) {
      for_blocks(device_.pool, elements, [&](std::size_t first, std::size_t count) {
        kernels::float_to_bf16(parameters().subspan(from + first, count),
                               copies().subspan(to + first, count));
      });
    };
    copy(0, 0, layout_.matrix_elements);
    copy(layout_.trained_elements, layout_.matrix_elements, layout_.frozen_matrix_elements);
  }

  // The next micro-batch sets them, so that nothing need be written before.
  void zero_gradients() override {
    gradients_are_zero_ = true;
    routing_.clear();
  }

  BatchLoss forward_backward(std::span<const std::int32_t> tokens,
                             std::span<const std::int32_t> targets,
                             std::span<const std::int32_t> document_starts,
                             std::span<const std::uint64_t> row_keys) override {
    set_dropout_keys(row_keys);
    const bool first = std::exchange(gradients_are_zero_, false);
    const auto loss = run(training_, tokens, targets, document_starts,
                          first ? MicroBatch::first : MicroBatch::later);
    note_routing();
    return loss;
  }

  RoutingReport& routing() override { return routing_; }

  BatchLoss forward_loss(std::span<const std::int32_t> tokens,
                         std::span<const std::int32_t> targets,
                         std::span<const std::int32_t> document_starts) override {
    return run(evaluation_, tokens, targets, document_starts, MicroBatch::later);
  }

  void logits(std::span<const std::int32_t> tokens, std::span<float> out) override {
    const auto length = static_cast<std::int64_t>(tokens.size());
    ISTHMUS_ASSERT(length >= 1 && length <= shape_.sequence);
    ISTHMUS_ASSERT(out.size() == tokens.size() * static_cast<std::size_t>(config_.vocabulary));
    auto& executor = logits_executor(length);
    const auto fill_behind = [&](std::span<std::int32_t> all, std::int32_t value) {
      std::ranges::fill(all.subspan(tokens.size()), value);
    };
    copy_tokens(tokens, executor.tokens().first(tokens.size()));
    fill_behind(executor.tokens(), 0);
    if (sees_both_ways()) {
      std::ranges::fill(executor.document_starts(), 0);
      fill_behind(executor.document_starts(), static_cast<std::int32_t>(length));
    }
    executor.run();
    const auto scores = executor.logits();
    std::copy_n(scores.begin(), out.size(), out.begin());
  }

  Result<std::unique_ptr<Decoding>> decoding(std::int64_t texts, std::int64_t length) override {
    if (objective_of(config_) != Objective::next_token)
      return Error{
          ErrorCode::unsupported,
          fmt::format("a {} predicts hidden tokens and continues no text", config_.family)};
    if (texts < 1 || length < 1 || length > config_.sequence_max)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("{} of {} tokens: there must be one at least, of 1 to {} tokens",
                               counted(texts, "text"), length, config_.sequence_max)};
    ISTHMUS_CHECK(fits_in_memory(
        "continuing these texts",
        static_cast<double>(memory_bytes() +
                            Decoding::bytes_of(config_, shape_.precision, texts, length)),
        "fewer or shorter ones"));
    return std::make_unique<Decoding>(config_, tuning_, shape_.precision, texts, length, places_,
                                      device_);
  }

  UpdateReport update(const AdamWOptions& options, double rate, std::int64_t counted) override {
    UpdateReport report;
    if (counted == 0) return report;
    const double squares = kernels::sum_of_squares(device_.pool, gradients(), norm_scratch_);
    report.gradient_norm = std::sqrt(squares) / static_cast<double>(counted);
    report.finite = std::isfinite(squares);
    if (!report.finite) return report;
    if (options.gradient_norm_skip > 0 && report.gradient_norm > options.gradient_norm_skip)
      return report;
    report.applied = true;
    ++updates_;
    kernels::AdamWStep step;
    step.beta1 = static_cast<float>(options.beta_1);
    step.beta2 = static_cast<float>(options.beta_2);
    step.epsilon = static_cast<float>(options.eps);
    step.step = updates_;
    step.gradient_scale = static_cast<float>(clip_factor(options, report.gradient_norm) /
                                             static_cast<double>(counted));
    for (const auto& range : rates_) {
      step.learning_rate = static_cast<float>(rate * range.factor);
      step.weight_decay = static_cast<float>(range.decays ? options.weight_decay : 0);
      update_range(step, range.first, range.end);
    }
    return report;
  }

  void set_rates(std::span<const RateFactor> rates) override {
    rates_ = rate_ranges(layout_, rates);
  }

  std::int64_t updates() const override { return updates_; }
  void set_updates(std::int64_t updates) override { updates_ = updates; }

  void measure_ops(bool on) override { training_.measure(on); }
  std::vector<OpTime> op_times() const override { return runtime::op_times(training_); }
  std::vector<kernels::GemmShape> gemms() const override {
    std::vector<kernels::GemmShape> all;
    for (const auto& op : training_.program().ops) {
      const auto of_op = runtime::gemms(training_.program(), op);
      all.insert(all.end(), of_op.begin(), of_op.end());
    }
    return all;
  }

  double flops(std::int64_t counted) const override {
    return flops_ - flops_per_target_ * static_cast<double>(shape_.tokens() - counted);
  }

  std::size_t memory_bytes() const override {
    std::size_t bytes = arena_.bytes().size() + device_.working_bytes();
    for (const auto* memory :
         {&parameters_, &gradients_, &first_moments_, &second_moments_, &copies_})
      bytes += memory->bytes().size();
    return bytes;
  }

 private:
  void initialise_one(const CanonicalTensor& tensor, std::uint64_t seed) {
    initialise_tensor(device_.pool, seed, tensor,
                      parameters().subspan(tensor.first, tensor.elements()));
  }

  ParameterPlaces parameter_places() {
    ParameterPlaces places;
    for (std::size_t i = 0; i < layout_.first.size(); ++i) {
      const auto first = layout_.first[i];
      places.masters.push_back(parameters().data() + first);
      // What is not there no op asks for.
      places.gradients.push_back(
          first < layout_.trained_elements ? gradients_.of<float>().data() + first : nullptr);
      const bool has_copy = !copies().empty() && layout_.copy_first[i] != ParameterLayout::kNoCopy;
      places.operands.push_back(has_copy ? copies().data() + layout_.copy_first[i] : nullptr);
    }
    return places;
  }

  std::span<bf16_t> copies() { return copies_.of<bf16_t>(); }

  void copy_tokens(std::span<const std::int32_t> from, std::span<std::int32_t> to) const {
    ISTHMUS_ASSERT(from.size() == to.size());
    ISTHMUS_ASSERT(std::all_of(from.begin(), from.end(), [&](std::int32_t token) {
      return token >= 0 && token < config_.vocabulary;
    }));
    std::copy(from.begin(), from.end(), to.begin());
  }

  void copy_targets(std::span<const std::int32_t> from, std::span<std::int32_t> to) const {
    ISTHMUS_ASSERT(from.size() == to.size());
    ISTHMUS_ASSERT(std::all_of(from.begin(), from.end(), [&](std::int32_t target) {
      return target == kIgnoredTarget || (target >= 0 && target < config_.vocabulary);
    }));
    std::copy(from.begin(), from.end(), to.begin());
  }

  void copy_document_starts(std::span<const std::int32_t> from, std::span<std::int32_t> to) const {
    ISTHMUS_ASSERT(from.size() == to.size());  // the rest is looked at by the kernel
    std::copy(from.begin(), from.end(), to.begin());
  }

  void set_dropout_keys(std::span<const std::uint64_t> row_keys) {
    if (training_.program().dropout_keys == kNoValue) return;
    ISTHMUS_ASSERT(static_cast<std::int64_t>(row_keys.size()) == shape_.micro_batch);
    const auto keys = training_.dropout_keys();
    for (std::size_t row = 0; row < row_keys.size(); ++row) {
      keys[2 * row] = static_cast<std::int32_t>(row_keys[row] & 0xFFFFFFFF);
      keys[2 * row + 1] = static_cast<std::int32_t>(row_keys[row] >> 32);
    }
  }

  BatchLoss run(CpuExecutor& executor, std::span<const std::int32_t> tokens,
                std::span<const std::int32_t> targets,
                std::span<const std::int32_t> document_starts, MicroBatch micro_batch) {
    copy_tokens(tokens, executor.tokens());
    copy_targets(targets, executor.targets());
    if (shape_.documents == Documents::apart)
      copy_document_starts(document_starts, executor.document_starts());
    else
      ISTHMUS_ASSERT(document_starts.empty());
    return executor.run(micro_batch);
  }

  // Adds what the run that has just ended routed.
  void note_routing() {
    if (routing_.experts == 0) return;
    const auto batch = static_cast<std::size_t>(shape_.micro_batch);
    const Routing routing{.sequence = shape_.sequence,
                          .experts = config_.experts,
                          .top_k = config_.experts_per_token,
                          .options = shape_.router};
    const auto capacity = routing.capacity();
    const auto loads = training_.loads();  // [layers, batch, experts]
    for (std::size_t at = 0; at < loads.size(); ++at) {
      const auto layer = at / routing_.experts / batch;
      routing_.chosen[layer * routing_.experts + at % routing_.experts] +=
          static_cast<std::uint64_t>(loads[at]);
      if (capacity > 0)
        routing_.dropped +=
            static_cast<std::uint64_t>(std::max<std::int64_t>(0, loads[at] - capacity));
    }
    routing_.balance_loss += device_.router_losses.balance;
    routing_.z_loss += device_.router_losses.z;
  }

  static double clip_factor(const AdamWOptions& options, double norm) {
    if (options.gradient_norm_max <= 0) return 1.0;
    return std::min(1.0, options.gradient_norm_max / (norm + kClipEps));
  }

  void update_range(const kernels::AdamWStep& step, std::size_t first, std::size_t end) {
    const auto of = [&](std::span<float> flat) { return flat.subspan(first, end - first); };
    const bool has_copies = !copies().empty() && end <= layout_.matrix_elements;
    const auto copy = has_copies ? copies().subspan(first, end - first) : std::span<bf16_t>{};
    kernels::adamw(device_.pool, step, of(gradients()), of(parameters()), of(first_moments()),
                   of(second_moments()), copy);
  }

  bool sees_both_ways() const { return objective_of(config_) == Objective::masked_tokens; }

  // Lists for lengths in powers of two, made when first asked for. What is behind a text is another
  // document to one that sees both ways.
  CpuExecutor& logits_executor(std::int64_t length) {
    std::int64_t planned = kLogitsLengthMin;
    while (planned < length) planned *= 2;
    planned = std::min(planned, shape_.sequence);
    auto& of_length = scoring_[planned];
    const BatchShape shape{.micro_batch = 1,
                           .sequence = planned,
                           .precision = shape_.precision,
                           .documents = sees_both_ways() ? Documents::apart : Documents::joined};
    if (!of_length)
      of_length = std::make_unique<StandaloneExecutor>(
          build_program(config_, tuning_, shape, Head::logits), places_, device_);
    return of_length->executor;
  }

  ModelConfig config_;
  FineTuning tuning_;
  BatchShape shape_;
  CpuDevice device_;
  ParameterLayout layout_;
  std::vector<RateRange> rates_;
  AlignedMemory parameters_, gradients_, first_moments_, second_moments_, copies_;
  std::vector<double> norm_scratch_;
  AlignedMemory arena_;  // training and evaluation, one at a time
  ParameterPlaces places_;
  CpuExecutor training_;
  CpuExecutor evaluation_;
  double flops_;             // of training_, which no step counts again
  double flops_per_target_;  // likewise; of the head
  std::map<std::int64_t, std::unique_ptr<StandaloneExecutor>> scoring_;  // by planned length
  RoutingReport routing_;
  std::int64_t updates_ = 0;
  bool gradients_are_zero_ = false;  // though what is in gradients_ may be of the step before
};

}  // namespace

Result<std::unique_ptr<Model>> Model::create(const ModelConfig& config, const BatchShape& shape,
                                             ThreadPool& pool, const FineTuning& tuning) {
  ISTHMUS_CHECK(check(config));
  ISTHMUS_CHECK(check(tuning, config));
  if (shape.micro_batch < 1 || shape.micro_batch > (1 << 20))
    return Error{ErrorCode::invalid_argument,
                 fmt::format("micro_batch is {}, but must be at least 1", shape.micro_batch)};
  if (shape.sequence < 1 || shape.sequence > config.sequence_max)
    return Error{ErrorCode::invalid_argument,
                 fmt::format("sequence is {}, but must be from 1 to the model's sequence_max, {}",
                             shape.sequence, config.sequence_max)};
  ISTHMUS_CHECK(fits_in_memory("training this model",
                               training_memory(config, shape, pool.workers(), tuning).total(),
                               "a smaller micro_batch, sequence or model"));
  return std::unique_ptr<Model>(
      std::make_unique<CpuModel>(config, tuning, shape, pool, Lists(config, tuning, shape)));
}

}  // namespace isthmus::runtime
