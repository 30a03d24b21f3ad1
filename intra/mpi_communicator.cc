#define OMPI_SKIP_MPICXX 1  // the C interface alone
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/assert.h"
#include "intra/communicator.h"

namespace isthmus::intra {
namespace {

// Elements a collective moves at once: bounds the scratch, and stays far below MPI's int counts.
constexpr std::size_t kBlockElements = std::size_t{1} << 20;
constexpr std::size_t kBroadcastBytes = std::size_t{1} << 28;

MPI_Datatype datatype_of(float) { return MPI_FLOAT; }
MPI_Datatype datatype_of(double) { return MPI_DOUBLE; }
MPI_Datatype datatype_of(std::uint64_t) { return MPI_UINT64_T; }

Result<void> check(int status, const char* what) {
  if (status == MPI_SUCCESS) return {};
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(status, text.data(), &length);
  return Error{ErrorCode::unavailable,
               fmt::format("{} between the ranks of this site failed: {}; see whether all of them "
                           "still run",
                           what, std::string(text.data(), static_cast<std::size_t>(length)))};
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm world, int rank, int world_size, int local_world_size)
      : world_(world), rank_(rank), world_size_(world_size), local_world_size_(local_world_size) {}
  // Without MPI_Finalize when nobody called close(): mpirun then ends the other ranks.
  ~MpiCommunicator() override = default;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }
  int local_world_size() const override { return local_world_size_; }

  Result<void> all_reduce(std::span<float> values) override { return sum(values); }
  Result<void> all_reduce(std::span<double> values) override { return sum(values); }
  Result<void> all_reduce(std::span<std::uint64_t> values) override { return sum(values); }

  Result<void> broadcast(std::span<std::byte> bytes, int root) override {
    ISTHMUS_ASSERT(root >= 0 && root < world_size_);
    while (!bytes.empty()) {
      const auto part = bytes.first(std::min(bytes.size(), kBroadcastBytes));
      ISTHMUS_CHECK(
          check(MPI_Bcast(part.data(), static_cast<int>(part.size()), MPI_BYTE, root, world_),
                "broadcast"));
      bytes = bytes.subspan(part.size());
    }
    return {};
  }

  Result<void> barrier() override { return check(MPI_Barrier(world_), "barrier"); }

  Result<void> close() override { return check(MPI_Finalize(), "the orderly end"); }

 private:
  template <class T>
  Result<void> sum(std::span<T> values) {
    while (!values.empty()) {
      const auto block = values.first(std::min(values.size(), kBlockElements));
      ISTHMUS_CHECK(sum_block(block));
      values = values.subspan(block.size());
    }
    return {};
  }

  // MPI_Allreduce may choose another order of summation in each version, topology and size. So:
  // rank r receives everybody's r-th part of the block, adds in the order of ranks, and all gather
  // the parts:
  //
  //   rank 0: a0 b0 c0        part 0 of all -> a0+a1+a2
  //   rank 1: a1 b1 c1   ->   part 1 of all -> b0+b1+b2   ->  all three at every rank
  //   rank 2: a2 b2 c2        part 2 of all -> c0+c1+c2
  template <class T>
  Result<void> sum_block(std::span<T> block) {
    const auto ranks = static_cast<std::size_t>(world_size_);
    cut(block.size());
    const auto mine = static_cast<std::size_t>(counts_[static_cast<std::size_t>(rank_)]);
    const auto mine_at = static_cast<std::size_t>(offsets_[static_cast<std::size_t>(rank_)]);
    for (std::size_t r = 0; r < ranks; ++r) {
      received_counts_[r] = static_cast<int>(mine);
      received_offsets_[r] = static_cast<int>(r * mine);
    }
    scratch_.resize(std::max(scratch_.size(), ranks * mine * sizeof(T)));
    const std::span<T> received(reinterpret_cast<T*>(scratch_.data()), ranks * mine);
    const MPI_Datatype type = datatype_of(T{});
    ISTHMUS_CHECK(
        check(MPI_Alltoallv(block.data(), counts_.data(), offsets_.data(), type, received.data(),
                            received_counts_.data(), received_offsets_.data(), type, world_),
              "all_reduce"));
    const std::span<T> total = block.subspan(mine_at, mine);
    std::copy_n(received.begin(), mine, total.begin());
    for (std::size_t r = 1; r < ranks; ++r)
      for (std::size_t i = 0; i < mine; ++i) total[i] += received[r * mine + i];
    return check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, block.data(), counts_.data(),
                                offsets_.data(), type, world_),
                 "all_reduce");
  }

  // One part of the block for each rank, as equal as possible.
  void cut(std::size_t elements) {
    const auto ranks = static_cast<std::size_t>(world_size_);
    for (auto* table : {&counts_, &offsets_, &received_counts_, &received_offsets_})
      table->resize(ranks);
    for (std::size_t r = 0; r < ranks; ++r) {
      const std::size_t begin = elements * r / ranks, end = elements * (r + 1) / ranks;
      counts_[r] = static_cast<int>(end - begin);
      offsets_[r] = static_cast<int>(begin);
    }
  }

  MPI_Comm world_;
  int rank_, world_size_, local_world_size_;
  std::vector<int> counts_, offsets_, received_counts_, received_offsets_;
  std::vector<std::byte> scratch_;
};

// How many ranks run where this one does.
Result<int> count_local_ranks() {
  MPI_Comm machine = MPI_COMM_NULL;
  int count = 0;
  ISTHMUS_CHECK(
      check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine),
            "set-up"));
  ISTHMUS_CHECK(check(MPI_Comm_size(machine, &count), "set-up"));
  ISTHMUS_CHECK(check(MPI_Comm_free(&machine), "set-up"));
  return count;
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_mpi_communicator() {
  int is_initialized = 0;
  MPI_Initialized(&is_initialized);
  ISTHMUS_ASSERT(!is_initialized);
  int provided = MPI_THREAD_SINGLE;
  ISTHMUS_CHECK(
      check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "the start of MPI"));
  if (provided < MPI_THREAD_FUNNELED)
    return Error{ErrorCode::unsupported,
                 "this MPI library does not allow other threads in its process "
                 "(MPI_THREAD_FUNNELED); install Debian's OpenMPI"};
  int rank = 0, world_size = 1;
  ISTHMUS_CHECK(check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "set-up"));
  ISTHMUS_CHECK(check(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "set-up"));
  ISTHMUS_CHECK(check(MPI_Comm_size(MPI_COMM_WORLD, &world_size), "set-up"));
  ISTHMUS_TRY(const int local_world_size, count_local_ranks());
  return std::unique_ptr<Communicator>(
      std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, rank, world_size, local_world_size));
}

}  // namespace isthmus::intra
