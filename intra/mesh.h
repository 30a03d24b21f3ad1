// The mesh: the ranks of a cluster as a grid of data × pipeline × tensor × expert, and the place of
// one rank in it. Ranks are numbered with expert fastest, then tensor, pipeline, data, so that the
// axes that talk most stay inside a node.
//
// Only the data axis may exceed 1 yet; the others are here because every layout is written in them.
#pragma once

#include "base/result.h"

namespace isthmus::intra {

struct MeshShape {
  int data = 1;      // replicas that see different samples
  int pipeline = 1;  // stages of consecutive layers
  int tensor = 1;    // slices of each matrix
  int expert = 1;    // groups of experts

  int ranks() const { return data * pipeline * tensor * expert; }
  bool operator==(const MeshShape&) const = default;
};

class Mesh {
 public:
  // Errors: invalid_argument when a size is below 1 or above 65536, or the ranks started are not
  // those the shape needs; unsupported when an axis but data exceeds 1.
  static Result<Mesh> make(MeshShape shape, int rank, int world_size);

  const MeshShape& shape() const { return shape_; }
  // The place of this rank: each coordinate is below the shape's.
  const MeshShape& place() const { return place_; }
  bool is_first() const { return place_ == MeshShape{0, 0, 0, 0}; }

 private:
  Mesh(MeshShape shape, MeshShape place) : shape_(shape), place_(place) {}

  MeshShape shape_;
  MeshShape place_;
};

}  // namespace isthmus::intra
