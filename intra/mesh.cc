#include "intra/mesh.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "base/assert.h"
#include "base/counted.h"

namespace isthmus::intra {

Result<Mesh> Mesh::make(MeshShape shape, int rank, int world_size) {
  ISTHMUS_ASSERT(rank >= 0 && rank < world_size);
  struct Axis {
    std::string_view name;
    int size;
  };
  const std::array<Axis, 4> axes{{{"data", shape.data},
                                  {"pipeline", shape.pipeline},
                                  {"tensor", shape.tensor},
                                  {"expert", shape.expert}}};
  for (const auto& axis : axes) {
    if (axis.size < 1 || axis.size > 65536)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("mesh.{} is {}: it must be between 1 and 65536", axis.name, axis.size)};
    if (axis.size > 1 && axis.name != "data")
      return Error{ErrorCode::unsupported,
                   fmt::format("mesh.{} is {}: this version splits a site along data only; set it "
                               "to 1",
                               axis.name, axis.size)};
  }
  if (shape.ranks() != world_size)
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("the mesh needs {} (data {} x pipeline {} x tensor {} x expert {}), but "
                    "{} started",
                    counted(shape.ranks(), "rank"), shape.data, shape.pipeline, shape.tensor,
                    shape.expert, world_size == 1 ? "1 was" : fmt::format("{} were", world_size))};
  MeshShape place;
  place.expert = rank % shape.expert;
  rank /= shape.expert;
  place.tensor = rank % shape.tensor;
  rank /= shape.tensor;
  place.pipeline = rank % shape.pipeline;
  place.data = rank / shape.pipeline;
  return Mesh(shape, place);
}

}  // namespace isthmus::intra
