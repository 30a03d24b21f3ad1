// A communicator: the ranks of one cluster that run collectives together. Two backends: alone (a
// world of one) and MPI. Who is in which communicator is the mesh's business.
//
// A collective is called by all ranks, in the same order and with the same sizes. Sums are made in
// the order of ranks, ((x_0 + x_1) + x_2) + …, each addition rounded once, whatever the number of
// elements and however the backend cuts them: every rank gets the same bits, in every run.
//
// Not thread-safe: one thread of a rank makes all calls. Errors: unavailable when a peer or the
// network is gone; the communicator is then of no more use, and the rank has to end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/result.h"

namespace isthmus::intra {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Ranks on this machine, this one included: they share its memory.
  virtual int local_world_size() const = 0;

  // Replaces `values` by their sum over all ranks.
  virtual Result<void> all_reduce(std::span<float> values) = 0;
  virtual Result<void> all_reduce(std::span<double> values) = 0;
  virtual Result<void> all_reduce(std::span<std::uint64_t> values) = 0;

  // Replaces `bytes` by those of `root`.
  virtual Result<void> broadcast(std::span<std::byte> bytes, int root) = 0;

  virtual Result<void> barrier() = 0;

  // The orderly end, called by all ranks. A rank that ends without it takes the others along
  // instead of leaving them to wait for ever.
  virtual Result<void> close() = 0;
};

// The communicator of a rank that has no others.
std::unique_ptr<Communicator> make_alone_communicator();

// All ranks that mpirun (or Slurm) started; once in a process, by the thread that will make all
// calls. Errors: unsupported when the MPI library lacks what is needed, unavailable when the ranks
// do not find each other.
Result<std::unique_ptr<Communicator>> make_mpi_communicator();

}  // namespace isthmus::intra
