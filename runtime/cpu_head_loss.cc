// The CPU column of the op table for the head: logits, their cross-entropy and its gradients, in
// chunks of rows, so that all logits never exist at once.
//
//   for each chunk:  logits = x · Wᵀ;  loss, dlogits = cross_entropy;  dx = dlogits · W;
//                    dW += dlogitsᵀ · x
//
// A row whose target is ignored adds nothing to any of these: of prompts, of what is not masked, of
// padding. Where there are such rows the others are gathered, and only they are multiplied:
//
//   x   a b c d e f g h   counted: b c f   gathered   b c f f …   up to a few more
//   dx  0 b c 0 0 f 0 0                               b c f
#include <algorithm>
#include <vector>

#include "base/copy_to.h"
#include "kernels/cross_entropy.h"
#include "kernels/gathered_rows.h"
#include "kernels/repeated_rows.h"
#include "runtime/cpu_device.h"
#include "runtime/cpu_ops.h"
#include "runtime/cpu_views.h"
#include "runtime/products.h"

namespace isthmus::runtime::cpu {
namespace {

using kernels::Rows;
using Numbers = std::span<std::int32_t>;  // of rows

static_assert(kIgnoredTarget == kernels::kIgnoredTarget);

// Products of gathered rows are prepared for each multiple of a step, which is this many rows, or
// a 32nd of a chunk that is long.
constexpr std::int64_t kStepMin = 32, kStepsMax = 32;

std::int64_t gathered_step(std::int64_t chunk_rows) {
  const auto steps = (chunk_rows + kStepMin * kStepsMax - 1) / (kStepMin * kStepsMax);
  return kStepMin * steps;
}

class HeadLoss {
 public:
  HeadLoss(const BoundOp& bound, bool backward, CpuDevice& device)
      : device_(device),
        x_(bound.inputs[0]),
        weight_(bound.inputs[1]),
        targets_(flat<const std::int32_t>(bound.inputs[2])),
        bias_(bound.inputs[3]),
        dx_(backward ? bound.outputs[0] : TensorView{}),
        dweight_(backward ? bound.outputs[1] : TensorView{}),
        dbias_(backward ? bound.outputs[3] : TensorView{}),
        logits_(bound.outputs[backward ? 4 : 0]),
        dlogits_(bound.outputs[backward ? 5 : 1]),
        backward_(backward),
        sets_first_((bound.op.sets_first & bit(1)) != 0),
        step_(gathered_step(chunk_rows())) {
    if (dlogits_.data == nullptr) dlogits_ = logits_;
    // The largest first, so that what they work in grows once.
    gathered_products_.resize(steps_of(chunk_rows()), products_of(chunk_rows()));
    for (std::size_t i = 1; i < gathered_products_.size(); ++i)
      gathered_products_[i - 1] = products_of(static_cast<std::int64_t>(i) * step_);
    if (const auto rest = x_.shape[0] % chunk_rows(); rest != 0) rest_products_ = products_of(rest);
    device.reserve_scratch(working().bytes);
  }

  void run() const {
    const auto memory = working();
    const auto counted = counted_rows(memory.counted);
    if (counted.size() == targets_.size())
      run_all(memory);
    else
      run_gathered(counted, memory);
  }

 private:
  struct ChunkProducts {
    const kernels::GemmPlan* logits = nullptr;
    const kernels::GemmPlan* dx = nullptr;
    const kernels::GemmPlan* dweight = nullptr;
    const kernels::GemmPlan* first_dweight = nullptr;  // of a step
  };

  // What a run works in, one after the other in the device's scratch; spans of a chunk's rows, and
  // `counted` and `places` of all.
  struct Working {
    std::span<double> losses;
    std::span<float> bias_sums;
    Numbers counted, places, numbers, targets;
    TensorView x, dx;
    std::size_t bytes = 0;
  };

  Working working() const {
    Working w;
    const auto all = targets_.size();
    const auto rows = static_cast<std::size_t>(chunk_rows());
    take(w, rows, w.losses);
    if (dbias_.data != nullptr)
      take(w, kernels::repeated_rows_scratch_floats(chunk_rows(), logits_.shape[1], 1),
           w.bias_sums);
    for (auto* numbers : {&w.counted, &w.places}) take(w, all, *numbers);
    for (auto* numbers : {&w.numbers, &w.targets}) take(w, rows, *numbers);
    w.x = take_rows(w, x_);
    if (dx_.data != nullptr) w.dx = take_rows(w, dx_);
    return w;
  }

  template <class T>
  void take(Working& w, std::size_t count, std::span<T>& to) const {
    constexpr std::size_t kAlignment = 64;
    const auto bytes = (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    const auto scratch = device_.scratch();
    // While the op is prepared only the size counts.
    if (w.bytes + bytes <= scratch.size())
      to = {reinterpret_cast<T*>(scratch.data() + w.bytes), count};
    w.bytes += bytes;
  }

  TensorView take_rows(Working& w, const TensorView& like) const {
    TensorView view{nullptr, like.dtype, {chunk_rows(), like.shape[1]}};
    std::span<std::byte> memory;
    take(w, view.bytes(), memory);
    view.data = memory.data();
    return view;
  }

  std::int64_t chunk_rows() const { return logits_.shape[0]; }

  // Of a chunk that gathers so many; one where there are none.
  std::size_t steps_of(std::int64_t counted) const {
    return static_cast<std::size_t>(std::max<std::int64_t>(1, (counted + step_ - 1) / step_));
  }

  ChunkProducts products_of(std::int64_t rows) const {
    const Products products{rows, weight_.shape[0], weight_.shape[1], weight_.dtype};
    ChunkProducts p;
    p.logits = &device_.gemm(products.forward(logits_.dtype));
    if (dx_.data != nullptr) p.dx = &device_.gemm(products.input_gradient(dx_.dtype, false));
    if (dweight_.data == nullptr) return p;
    p.dweight = &device_.gemm(products.weight_gradient(true));
    p.first_dweight = &device_.gemm(products.weight_gradient(!sets_first_));
    return p;
  }

  Numbers counted_rows(Numbers memory) const {
    std::size_t count = 0;
    for (std::size_t row = 0; row < targets_.size(); ++row)
      if (targets_[row] != kIgnoredTarget) memory[count++] = static_cast<std::int32_t>(row);
    return memory.first(count);
  }

  void run_all(const Working& memory) const {
    const auto all = x_.shape[0];
    for (std::int64_t first = 0; first < all; first += chunk_rows()) {
      const auto rows = std::min(chunk_rows(), all - first);
      run_chunk(rows == chunk_rows() ? gathered_products_.back() : rest_products_, first == 0,
                Rows(x_).row_range(first, rows),
                targets_.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(rows)),
                dx_.data != nullptr ? Rows(dx_).row_range(first, rows) : Rows(), memory);
    }
  }

  // One chunk even where nothing is counted, for what is set by the first one.
  void run_gathered(Numbers counted, const Working& memory) const {
    const auto chunk = static_cast<std::size_t>(chunk_rows());
    std::size_t done = 0;    // of the counted
    std::int64_t token = 0;  // whose dx comes next
    do {
      const auto of_chunk = counted.subspan(done, std::min(chunk, counted.size() - done));
      done += of_chunk.size();
      const auto end = done == counted.size() ? x_.shape[0] : of_chunk.back() + 1;
      gather_chunk(of_chunk, token == 0, memory);
      if (dx_.data != nullptr) scatter_dx(of_chunk, token, end, memory);
      token = end;
    } while (done < counted.size());
  }

  void gather_chunk(Numbers counted, bool is_first, const Working& memory) const {
    const auto steps = steps_of(std::ssize(counted));
    const auto rows = std::min(static_cast<std::int64_t>(steps) * step_, chunk_rows());
    const auto numbers = memory.numbers.first(static_cast<std::size_t>(rows));
    const auto targets = memory.targets.first(numbers.size());
    // What fills the chunk up is any row, with a target that is not counted.
    std::ranges::fill(numbers, counted.empty() ? 0 : counted.back());
    copy_to(counted, numbers.data());
    std::ranges::fill(targets, kIgnoredTarget);
    std::ranges::transform(counted, targets.begin(), [this](std::int32_t row) {
      return targets_[static_cast<std::size_t>(row)];
    });
    const auto x = Rows(memory.x).row_range(0, rows);
    kernels::gather_rows(device_.pool, x_, numbers, x);
    run_chunk(gathered_products_[steps - 1], is_first, x, targets,
              dx_.data != nullptr ? Rows(memory.dx).row_range(0, rows) : Rows(), memory);
  }

  // dx of the tokens from `first` to before `end`: of those counted what was made, else zero.
  void scatter_dx(Numbers counted, std::int64_t first, std::int64_t end,
                  const Working& memory) const {
    const auto places = memory.places.first(static_cast<std::size_t>(end - first));
    std::ranges::fill(places, kernels::kNoRow);
    for (std::size_t i = 0; i < counted.size(); ++i)
      places[static_cast<std::size_t>(counted[i] - first)] = static_cast<std::int32_t>(i);
    kernels::sum_gathered_rows(device_.pool, memory.dx, places, false,
                               Rows(dx_).row_range(first, end - first));
  }

  void run_chunk(const ChunkProducts& products, bool is_first, const Rows& x,
                 std::span<const std::int32_t> targets, const Rows& dx,
                 const Working& memory) const {
    auto& pool = device_.pool;
    const auto logits = Rows(logits_).row_range(0, x.rows);
    const auto dlogits = Rows(dlogits_).row_range(0, x.rows);
    const auto losses = memory.losses.first(targets.size());
    products.logits->run(pool, x.data, weight_.data, logits.data);
    if (bias_.data != nullptr) kernels::add_repeated_rows(pool, logits, bias_, logits);
    const auto sum = backward_ ? kernels::cross_entropy_forward_backward(pool, logits, targets,
                                                                         1.0F, dlogits, losses)
                               : kernels::cross_entropy_forward(pool, logits, targets, losses);
    device_.loss += BatchLoss{sum.loss, sum.tokens};
    if (products.dx != nullptr) products.dx->run(pool, dlogits.data, weight_.data, dx.data);
    if (dbias_.data != nullptr) kernels::sum_repeated_rows(pool, dlogits, dbias_, memory.bias_sums);
    if (products.dweight == nullptr) return;
    (device_.first_micro_batch && is_first ? products.first_dweight : products.dweight)
        ->run(pool, dlogits.data, x.data, dweight_.data);
  }

  CpuDevice& device_;
  TensorView x_, weight_;
  std::span<const std::int32_t> targets_;
  TensorView bias_, dx_, dweight_, dbias_, logits_, dlogits_;
  bool backward_, sets_first_;
  std::int64_t step_;
  std::vector<ChunkProducts> gathered_products_;  // of one step, of two, …; the last of a chunk
  ChunkProducts rest_products_;
};

}  // namespace

PreparedOp head_loss_forward(const BoundOp& bound, CpuDevice& device) {
  return [head = HeadLoss(bound, false, device)] { head.run(); };
}

PreparedOp head_loss_backward(const BoundOp& bound, CpuDevice& device) {
  return [head = HeadLoss(bound, true, device)] { head.run(); };
}

}  // namespace isthmus::runtime::cpu
