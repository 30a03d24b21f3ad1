#include "kernels/vector_targets.h"

#include <hwy/highway.h>

namespace isthmus::kernels {

std::vector<VectorTarget> vector_targets() {
  std::vector<VectorTarget> targets;
  for (const std::int64_t id : hwy::SupportedAndGeneratedTargets())
    targets.push_back({hwy::TargetName(id), id});
  return targets;
}

ForcedVectorTarget::ForcedVectorTarget(const VectorTarget& target) {
  hwy::SetSupportedTargetsForTest(target.id);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

ForcedVectorTarget::~ForcedVectorTarget() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace isthmus::kernels
