#include "kernels/gemm.h"

#include <algorithm>

#include "base/assert.h"
#include "kernels/cpu_features.h"
#include "kernels/panel_products.h"

namespace isthmus::kernels {

bool bf16_gemm_is_native() {
  static const bool fast = bf16_dot_products_are_fast();
  return fast;
}

namespace {

// The smaller factor is the shared one.
ProductsAtOnce at_once(const GemmShape& s) {
  return {1, std::min(s.m, s.n), s.k, s.m * s.n, s.output};
}

}  // namespace

struct GemmPlan::Parts {
  Parts(const GemmShape& plan_shape, GemmScratch::Memory& memory, bool native_bf16)
      : shape(plan_shape),
        workers(memory.workers.size()),
        products(panels_of(shape.input, native_bf16),
                 shape.m <= shape.n ? SharedFactor::a : SharedFactor::b, at_once(shape), memory) {}

  GemmShape shape;
  std::size_t workers;
  PanelProducts products;
};

GemmPlan::GemmPlan(const GemmShape& shape, GemmScratch& scratch, bool native_bf16) {
  ISTHMUS_ASSERT(shape.m > 0 && shape.n > 0 && shape.k > 0);
  ISTHMUS_ASSERT(shape.output == DType::f32 || (shape.input == DType::bf16 && !shape.accumulate));
  parts_ = std::make_unique<Parts>(shape, scratch.memory(), native_bf16);
}

GemmPlan::~GemmPlan() = default;
GemmPlan::GemmPlan(GemmPlan&&) noexcept = default;
GemmPlan& GemmPlan::operator=(GemmPlan&&) noexcept = default;
const GemmShape& GemmPlan::shape() const { return parts_->shape; }

void GemmPlan::run(ThreadPool& pool, const void* a, const void* b, void* c) const {
  ISTHMUS_ASSERT(pool.workers() <= parts_->workers);
  const auto& s = shape();
  const auto factor = [&](const void* data, bool lines_are_rows, std::int64_t stride) {
    return lines_are_rows ? Factor::rows(data, s.input, stride)
                          : Factor::columns(data, s.input, stride);
  };
  const bool tn = s.form == GemmForm::tn, nt = s.form == GemmForm::nt;
  const bool is_gradient = tn && s.output == DType::f32;  // of a weight: who needs it waits for all
  const Product product{s.m,
                        s.n,
                        s.k,
                        factor(a, !tn, tn ? s.m : s.k),
                        factor(b, nt, nt ? s.k : s.n),
                        {c, s.output, s.n, s.accumulate, is_gradient && !s.accumulate}};
  parts_->products.run(pool, {&product, 1});
}

}  // namespace isthmus::kernels
