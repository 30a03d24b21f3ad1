#include "kernels/grouped_gemm.h"

#include <algorithm>

#include "base/assert.h"
#include "kernels/panel_products.h"

namespace isthmus::kernels {
namespace {

// Rows, of which all groups together have no more than there is memory for, are shared; of a
// weight's gradient the smaller side.
SharedFactor shared_factor(const GroupedGemmShape& shape) {
  return shape.form != GemmForm::tn || shape.out <= shape.in ? SharedFactor::a : SharedFactor::b;
}

ProductsAtOnce at_once(const GroupedGemmShape& s) {
  const auto groups = static_cast<std::size_t>(s.groups);
  // Of a weight's gradient each group shares its own rows, over which it sums.
  if (s.form == GemmForm::tn)
    return {groups, s.groups * filled(std::min(s.out, s.in)), s.rows_max, s.groups * s.out * s.in,
            s.output};
  const bool forward = s.form == GemmForm::nt;
  return {groups, s.rows_max, forward ? s.in : s.out, s.rows_max * (forward ? s.out : s.in),
          s.output};
}

}  // namespace

struct GroupedGemmPlan::Parts {
  Parts(const GroupedGemmShape& plan_shape, GemmScratch::Memory& memory, bool native_bf16)
      : shape(plan_shape),
        scratch(&memory),
        panels(panels_of(shape.input, native_bf16), shared_factor(shape), at_once(shape), memory) {}

  Product product(std::int64_t group, std::int64_t first, std::int64_t rows, const void* a,
                  const void* b, void* c) const;

  GroupedGemmShape shape;
  GemmScratch::Memory* scratch;
  PanelProducts panels;
};

// Of one group, whose rows begin with `first`.
Product GroupedGemmPlan::Parts::product(std::int64_t group, std::int64_t first, std::int64_t rows,
                                        const void* a, const void* b, void* c) const {
  const auto& s = shape;
  const auto weights = group * s.out * s.in;
  switch (s.form) {
    case GemmForm::nt:
      return {rows,
              s.out,
              s.in,
              Factor::rows(a, s.input, s.in).from_line(first),
              Factor::rows(advance(b, weights, s.input), s.input, s.in),
              TileTarget{c, s.output, s.out}.at(first, 0)};
    case GemmForm::nn:
      return {rows,
              s.in,
              s.out,
              Factor::rows(a, s.input, s.out).from_line(first),
              Factor::columns(advance(b, weights, s.input), s.input, s.in),
              TileTarget{c, s.output, s.in}.at(first, 0)};
    case GemmForm::tn:
      break;
  }
  if (rows == 0 && s.accumulate) return {};
  return {s.out,
          s.in,
          rows,
          Factor::columns(a, s.input, s.out).from_inner(first),
          Factor::columns(b, s.input, s.in).from_inner(first),
          {static_cast<float*>(c) + weights, s.output, s.in, s.accumulate, !s.accumulate}};
}

GroupedGemmPlan::GroupedGemmPlan(const GroupedGemmShape& shape, GemmScratch& scratch,
                                 bool native_bf16) {
  ISTHMUS_ASSERT(shape.groups > 0 && shape.out > 0 && shape.in > 0);
  ISTHMUS_ASSERT(shape.rows_max > 0);
  ISTHMUS_ASSERT(shape.form == GemmForm::tn ? shape.output == DType::f32
                                            : !shape.accumulate && (shape.output == DType::f32 ||
                                                                    shape.input == DType::bf16));
  parts_ = std::make_unique<Parts>(shape, scratch.memory(), native_bf16);
}

GroupedGemmPlan::~GroupedGemmPlan() = default;
GroupedGemmPlan::GroupedGemmPlan(GroupedGemmPlan&&) noexcept = default;
GroupedGemmPlan& GroupedGemmPlan::operator=(GroupedGemmPlan&&) noexcept = default;
const GroupedGemmShape& GroupedGemmPlan::shape() const { return parts_->shape; }

void GroupedGemmPlan::run(ThreadPool& pool, const void* a, const void* b, void* c,
                          std::span<const std::int32_t> offsets) const {
  const auto& parts = *parts_;
  ISTHMUS_ASSERT(pool.workers() <= parts.scratch->workers.size());
  ISTHMUS_ASSERT(std::ssize(offsets) == parts.shape.groups + 1 && offsets.front() == 0 &&
                 offsets.back() <= parts.shape.rows_max);
  auto& products = parts.scratch->products;
  products.clear();
  for (std::size_t g = 0; g + 1 < offsets.size(); ++g) {
    ISTHMUS_ASSERT(offsets[g + 1] >= offsets[g]);
    products.push_back(parts.product(static_cast<std::int64_t>(g), offsets[g],
                                     offsets[g + 1] - offsets[g], a, b, c));
  }
  parts.panels.run(pool, products);
}

}  // namespace isthmus::kernels
