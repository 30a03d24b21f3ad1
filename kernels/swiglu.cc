#include "kernels/swiglu.h"

#include <cmath>

#include "kernels/elements.h"
#include "kernels/row_tasks.h"

namespace isthmus::kernels {

void swiglu_forward(ThreadPool& pool, const Rows& gate, const Rows& up, const Rows& out) {
  ISTHMUS_ASSERT(gate.same_shape(up) && gate.same_shape(out) && gate.dtype == up.dtype);
  for_row_tasks(pool, gate.rows, gate.columns,
                [&](std::int64_t first, std::int64_t end, auto, auto) {
                  with_element(gate.dtype, [&](auto in) {
                    with_element(out.dtype, [&](auto result) {
                      for (std::int64_t row = first; row < end; ++row) {
                        const auto* g = static_cast<const decltype(in)*>(gate.at(row, 0));
                        const auto* u = static_cast<const decltype(in)*>(up.at(row, 0));
                        auto* o = static_cast<decltype(result)*>(out.at(row, 0));
                        for (std::int64_t i = 0; i < gate.columns; ++i) {
                          const float x = load(g + i);
                          store(x / (1.0F + std::exp(-x)) * load(u + i), o + i);
                        }
                      }
                    });
                  });
                });
}

void swiglu_backward(ThreadPool& pool, const Rows& dout, const Rows& gate, const Rows& up,
                     const Rows& dgate, const Rows& dup, const Rows& out) {
  ISTHMUS_ASSERT(gate.same_shape(up) && gate.same_shape(dout) && gate.same_shape(dgate) &&
                 gate.same_shape(dup) && gate.dtype == up.dtype && dgate.dtype == dup.dtype);
  ISTHMUS_ASSERT(out.data == nullptr || (gate.same_shape(out) && out.dtype == gate.dtype));
  for_row_tasks(
      pool, gate.rows, gate.columns, [&](std::int64_t first, std::int64_t end, auto, auto) {
        with_element(gate.dtype, [&](auto in) {
          with_element(dout.dtype, [&](auto upstream) {
            with_element(dgate.dtype, [&](auto result) {
              for (std::int64_t row = first; row < end; ++row) {
                const auto* d = static_cast<const decltype(upstream)*>(dout.at(row, 0));
                const auto* g = static_cast<const decltype(in)*>(gate.at(row, 0));
                const auto* u = static_cast<const decltype(in)*>(up.at(row, 0));
                auto* dg = static_cast<decltype(result)*>(dgate.at(row, 0));
                auto* du = static_cast<decltype(result)*>(dup.at(row, 0));
                auto* o =
                    out.data == nullptr ? nullptr : static_cast<decltype(in)*>(out.at(row, 0));
                for (std::int64_t i = 0; i < gate.columns; ++i) {
                  const float x = load(g + i);
                  const float y = load(u + i);
                  const float gradient = load(d + i);
                  const float sigmoid = 1.0F / (1.0F + std::exp(-x));
                  const float silu = x * sigmoid;
                  store(gradient * y * sigmoid * (1.0F + x - silu), dg + i);
                  store(gradient * silu, du + i);
                  if (o != nullptr) store(silu * y, o + i);
                }
              }
            });
          });
        });
      });
}

}  // namespace isthmus::kernels
