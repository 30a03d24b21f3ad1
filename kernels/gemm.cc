#include "kernels/gemm.h"

#include "base/assert.h"
#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

bool bf16_gemm_is_native() { return __builtin_cpu_supports("avx512bf16") != 0; }

struct GemmScratch::Memory {};
GemmScratch::GemmScratch(std::size_t) : memory_(std::make_unique<Memory>()) {}
GemmScratch::~GemmScratch() = default;

struct GemmPlan::Parts {
  GemmShape shape;
};

GemmPlan::GemmPlan(const GemmShape& shape, GemmScratch&, bool)
    : parts_(std::make_unique<Parts>(Parts{shape})) {
  ISTHMUS_ASSERT(shape.m > 0 && shape.n > 0 && shape.k > 0);
  ISTHMUS_ASSERT(shape.output == DType::f32 || (shape.input == DType::bf16 && !shape.accumulate));
}
GemmPlan::~GemmPlan() = default;
GemmPlan::GemmPlan(GemmPlan&&) noexcept = default;
GemmPlan& GemmPlan::operator=(GemmPlan&&) noexcept = default;
const GemmShape& GemmPlan::shape() const { return parts_->shape; }

void GemmPlan::run(ThreadPool& pool, const void* a, const void* b, void* c) const {
  const GemmShape& s = parts_->shape;
  with_element(s.input, [&](auto in) {
    with_element(s.output, [&](auto out) {
      const auto* left = static_cast<const decltype(in)*>(a);
      const auto* right = static_cast<const decltype(in)*>(b);
      auto* result = static_cast<decltype(out)*>(c);
      const std::int64_t a_row = s.form == GemmForm::tn ? 1 : s.k;
      const std::int64_t a_inner = s.form == GemmForm::tn ? s.m : 1;
      const std::int64_t b_column = s.form == GemmForm::nt ? s.k : 1;
      const std::int64_t b_inner = s.form == GemmForm::nt ? 1 : s.n;
      for_row_tasks(pool, s.m, s.n * s.k, [&](std::int64_t first, std::int64_t end, auto, auto) {
        for (std::int64_t i = first; i < end; ++i)
          for (std::int64_t j = 0; j < s.n; ++j) {
            float sum = s.accumulate ? load(result + i * s.n + j) : 0.0F;
            for (std::int64_t l = 0; l < s.k; ++l)
              sum +=
                  load(left + i * a_row + l * a_inner) * load(right + j * b_column + l * b_inner);
            store(sum, result + i * s.n + j);
          }
      });
    });
  });
}

std::size_t GemmPlan::packed_bytes() const { return 0; }
void GemmPlan::pack(ThreadPool&, const void*, void*) const { ISTHMUS_ASSERT(packed_bytes() > 0); }
void GemmPlan::run_packed(ThreadPool&, const void*, const void*, void*) const {
  ISTHMUS_ASSERT(packed_bytes() > 0);
}

}  // namespace isthmus::kernels
