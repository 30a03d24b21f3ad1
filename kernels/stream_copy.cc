#include "kernels/stream_copy.h"

#include <hwy/cache_control.h>

#include <cstddef>
#include <cstdint>

#include "base/assert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/stream_copy.cc"
#include <hwy/foreach_target.h>  // compiles this file once per target

#include "kernels/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace isthmus::kernels::HWY_NAMESPACE {

void stream_values(const float* from, std::size_t count, float* to) {
  const FloatTag d;
  const std::size_t lanes = hn::Lanes(d);
  std::size_t i = 0;
  for (; i < count && reinterpret_cast<std::uintptr_t>(to + i) % (lanes * sizeof(float)) != 0; ++i)
    to[i] = from[i];
  for (; i + lanes <= count; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  for (; i < count; ++i) to[i] = from[i];
  hwy::FlushStream();  // or a later write of this thread could be seen before these
}

}  // namespace isthmus::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace isthmus::kernels {

HWY_EXPORT(stream_values);

void stream_copy(std::span<const float> from, std::span<float> to) {
  ISTHMUS_ASSERT(from.size() == to.size());
  HWY_DYNAMIC_DISPATCH(stream_values)(from.data(), from.size(), to.data());
}

}  // namespace isthmus::kernels
#endif
