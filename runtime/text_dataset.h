// TextDataset: training samples from files of tokens (runtime/token_file.h; text is one, of bytes),
// mixed by weight. A sample is a window of sequence + 1 tokens (inputs, and targets one further);
// which one is a function of (seed, sample
// number) alone, so the position of a run is one integer, resume is exact, and ranks that take
// disjoint sample numbers see disjoint data.
//
//   sample number ──► source: a shuffled pattern of 4096, repeated, in which each source has its
//                     share (so a mixture is exact over 4096 samples, not just on average)
//   n-th sample of a source ──► epoch, and window in it: packed one after the other from a random
//                     offset per epoch, drawn in shuffled order, each once per epoch
//
//   file  |··offset··|── window p(0) ──|── window p(1) ──| … |··|     without padding; a window's
//                                                                    last target opens the next
//
// Where documents are kept apart, a window says where each one in it begins, and no target is the
// first token of another document.
//
// Files are read, not mapped: one that shrinks under way is an error here, and no SIGBUS. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/disk.h"
#include "base/random.h"
#include "base/result.h"
#include "runtime/model_config.h"
#include "runtime/token_file.h"
#include "security/hash.h"

namespace isthmus::runtime {

struct TextSource {
  std::string path;
  double weight = 1.0;  // of its samples among those of all sources; any unit
};

class TextDataset {
 public:
  // Errors: not_found, permission, io (a file cannot be read), corrupt, mismatch (TokenFile::open),
  // invalid_argument (no source, a weight that is not positive or too small beside the others, a
  // file shorter than one sample, or, where they are to be apart, of which it is not known where
  // documents begin).
  static Result<TextDataset> open(Disk& disk, const std::vector<TextSource>& sources,
                                  std::int64_t sequence, std::uint64_t seed,
                                  const TokenFormat& format = {},
                                  Documents documents = Documents::joined);

  std::int64_t sequence() const { return sequence_; }

  // All ids are below.
  std::int32_t vocabulary() const { return vocabulary_; }

  Documents documents() const { return documents_; }

  // The tokens of a sample, and what follows each: kIgnoredTarget where a mask says so. Both hold
  // sequence(). Where documents are apart, document_starts does too: where in the sample each
  // token's begins, 0 for one that began before; else it is empty. Errors: corrupt (a file has
  // become shorter, an id outside the vocabulary), io.
  Result<void> read(std::uint64_t sample, std::span<std::int32_t> tokens,
                    std::span<std::int32_t> targets,
                    std::span<std::int32_t> document_starts = {}) const;

  // Where a sample lies: for tests and for people.
  struct Place {
    std::size_t source = 0;
    std::uint64_t epoch = 0;   // of that source
    std::uint64_t offset = 0;  // in tokens
  };
  Place locate(std::uint64_t sample) const;

  // Of all sources.
  std::uint64_t tokens() const;

  // Of everything that the choice of samples depends on (sizes, weights, sequence, seed): when it
  // changes, a kept position means other data.
  const security::Digest& digest() const { return digest_; }

 private:
  struct Source {
    TokenFile file;
    std::uint64_t windows = 0;  // per epoch
    std::uint64_t offsets = 0;  // choices of an epoch's first token
    std::uint64_t slots = 0;    // of the mixture
  };
  struct Slot {
    std::uint32_t source = 0;
    std::uint32_t nth = 0;  // of the source's slots
  };
  explicit TextDataset(std::uint64_t seed) : random_(Random(seed).split("text_dataset")) {}
  Result<void> share_slots(const std::vector<TextSource>& sources);
  void mix_slots();

  std::vector<Source> sources_;
  std::vector<Slot> mixture_;
  std::int64_t sequence_ = 0;
  std::int32_t vocabulary_ = 0;
  Documents documents_ = Documents::joined;
  Random random_;
  security::Digest digest_;
};

}  // namespace isthmus::runtime
