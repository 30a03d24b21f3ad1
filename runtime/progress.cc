#include "runtime/progress.h"

#include "base/assert.h"
#include "runtime/spike_guard.h"

namespace isthmus::runtime {

Bytes encode(const Progress& p) {
  ByteWriter out;
  out.put(p.inner_step).put(p.data_position).put(p.tokens).put(p.seed).string(p.data_digest);
  out.string(p.frozen_digest).put(p.skipped_steps);
  out.put(static_cast<std::uint32_t>(p.gradient_norms.size()));
  for (const double norm : p.gradient_norms) out.put(norm);
  out.put(p.best_step).put(p.best_bits);
  out.put(p.outer_step).string(p.record).string(p.run).put(p.steps_since).put(p.tokens_since);
  out.put(p.handed_steps).put(p.handed_tokens);
  return out.take();
}

Progress decode_progress(std::span<const std::byte> bytes) {
  constexpr std::size_t kTextMax = 1024;
  ByteReader in(bytes);
  Progress p;
  p.inner_step = in.get<std::int64_t>();
  p.data_position = in.get<std::uint64_t>();
  p.tokens = in.get<std::uint64_t>();
  p.seed = in.get<std::uint64_t>();
  p.data_digest = in.string(kTextMax);
  p.frozen_digest = in.string(kTextMax);
  p.skipped_steps = in.get<std::uint64_t>();
  p.gradient_norms.resize(in.count(SpikeGuard::kNorms, sizeof(double)));
  for (auto& norm : p.gradient_norms) norm = in.get<double>();
  p.best_step = in.get<std::int64_t>();
  p.best_bits = in.get<double>();
  p.outer_step = in.get<std::uint64_t>();
  p.record = in.string(kTextMax);
  p.run = in.string(kTextMax);
  p.steps_since = in.get<std::int64_t>();
  p.tokens_since = in.get<std::uint64_t>();
  p.handed_steps = in.get<std::int64_t>();
  p.handed_tokens = in.get<std::uint64_t>();
  ISTHMUS_ASSERT(in.done());
  return p;
}

}  // namespace isthmus::runtime
