#include "launcher/site_memory.h"

#include <algorithm>

#include "base/thread_pool.h"
#include "inter/exchange.h"
#include "inter/record.h"
#include "launcher/rank_setup.h"

namespace isthmus::launcher {

namespace {

// In memory: in both views as a member, a voter and a node of a map, as a part, and its signature.
constexpr std::size_t kNodeBytes = 64;
constexpr std::size_t kRecordBytesOfSite = 2 * (2 * sizeof(inter::SiteId) + kNodeBytes) +
                                           sizeof(inter::Part) + sizeof(inter::Certificate::Accept);

}  // namespace

SiteMemory memory_of(const SiteFile& file, std::size_t sites) {
  const auto& model = file.model.config;
  const auto threads = rank_cpus(file, 0, static_cast<int>(available_cpus().size())).size();
  SiteMemory memory{.training = runtime::training_memory(model, training_shape(file), threads,
                                                         file.fine_tuning())};
  if (file.alone()) return memory;
  const auto parameters =
      static_cast<double>(runtime::trained_parameter_count(model, file.fine_tuning()));
  const double momentum =
      file.sync.outer == inter::OuterRuleKind::nesterov ? runtime::kGatewayMomentumBytes : 0;
  // Each site's as it came and as it is checked, and of older steps for sites that return.
  const double contribution = sizeof(float) * codec_share(file.sync.codec);
  const double coded = static_cast<double>((2 + inter::kOldSteps) * sites) * contribution;
  memory.exchange = runtime::kFederatedRankBytes * parameters;
  memory.gateway_state = (runtime::kGatewayStateBytes + momentum + coded) * parameters;
  // A link keeps two windows of chunks at most, and who sends has no more than its contribution.
  const auto window =
      std::min(static_cast<double>(file.gateway.receive_window), contribution * parameters);
  memory.gateway_windows = 2 * static_cast<double>(sites - 1) * window;
  memory.gateway_shared = runtime::kGatewaySharedBytes * parameters;
  memory.gateway_records =
      static_cast<double>(file.sync.outer_steps) *
      (sizeof(inter::Certificate) + static_cast<double>(sites) * kRecordBytesOfSite);
  return memory;
}

double codec_share(compress::CodecId codec) {
  switch (codec) {
    case compress::CodecId::none:
      return 1;
    case compress::CodecId::bf16:
      return 0.5;
    case compress::CodecId::int8:
      return 0.25 * (1 + 4.0 / 256);
  }
  return 1;
}

}  // namespace isthmus::launcher
