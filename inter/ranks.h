// The boundary between a gateway and what computes at its site. `Ranks` is what the gateway calls,
// `OuterSteps` what it offers. Behind Ranks stand real processes (inter/attach_server.h) or a
// synthetic contributor (inter/sim). Both on the gateway's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/large_vector.h"
#include "base/result.h"
#include "inter/contributed_values.h"
#include "inter/model_layout.h"
#include "security/hash.h"

namespace isthmus::inter {

// How a rank takes a new state over: x ← state + (x − contributed). The only rule yet.
enum class MergeRule : std::uint8_t { keep_progress = 0 };

// Where the parameters of the next state can be written while they are computed, by those who
// compute them: published, they need no copy.
class StateDraft {
 public:
  virtual ~StateDraft() = default;
  // From element `first` on, in layout order; any thread. Once another draft or state has taken its
  // place, nothing.
  virtual void write(std::uint64_t first, std::span<const float> values) = 0;
};

// The agreed state after an outer step. `parameters` (layout order) stays as it is for as long as
// Ranks::reading() says so.
struct Published {
  std::uint64_t step = 0;  // 0: the initial state
  security::Digest record;
  security::Digest run;
  std::span<const float> parameters;
  MergeRule merge = MergeRule::keep_progress;
  bool final_step = false;  // nothing follows: the ranks may end
  // The newest step of which this site's contribution is on disk: what was taken and lost with a
  // process is still the ranks'.
  std::uint64_t contributed = 0;
  bool contribution_open = false;  // after a restart: this site's contribution to step + 1 is
                                   // already made; the next state follows
  std::shared_ptr<StateDraft> draft = {};  // all of `parameters` was written to it
};

// What a rank last said of itself, for people.
struct RankStatus {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::int64_t pid = 0;
  std::uint64_t inner_step = 0;
  double loss = 0;
  double tokens_per_second = 0;
  std::string state;  // "computing", "waiting for alpha", …
};

class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual void publish(const Published& state) = 0;
  // A new one, in place of the last. Nothing: the ranks still read the last state, or are not
  // there.
  virtual std::shared_ptr<StateDraft> draft() { return nullptr; }
  // The parameters of the last publish() are still being handed to the ranks.
  virtual bool reading() const = 0;
  // All ranks are attached and have said that they have the last publish().
  virtual bool all_took() const = 0;
  // They are not valid any more: whoever published ends.
  virtual void forget() = 0;
  // Nothing more will be published: the run's configuration does not match, or the gateway ends.
  // `why` for the rank's user.
  virtual void refuse(const Error& why) = 0;
  virtual std::vector<RankStatus> status() const = 0;
};

class OuterSteps {
 public:
  virtual ~OuterSteps() = default;
  // A site's ranks are there (again) and agree on this layout. The first time it becomes the
  // gateway's; later it must be equal (mismatch). publish() follows once there is a state, at once
  // when there is one.
  virtual Result<void> attached(const ModelLayout& layout) = 0;
  // Not all of them are there any more: nothing can be contributed before attached() follows.
  virtual void detached() = 0;
  // Parameters to begin the run with, should it be a new one; ignored when the gateway has a state.
  virtual void offer_initial(LargeVector<float> parameters) = 0;
  // Parameters after the inner steps that began at the state of `step` − 1, and the tokens trained
  // in them. Errors: mismatch (another step is due, or this one has its contribution), non_finite.
  // `parameters` are read until the last reference to them goes, which may take until the next
  // state is published.
  virtual Result<void> contribute(std::uint64_t step,
                                  std::shared_ptr<const ContributedValues> parameters,
                                  std::uint64_t tokens) = 0;
  // The ranks live and compute: a site with progress is waited for longer than a silent one.
  virtual void progressing() = 0;
  // The ranks stop for good reason (the user's wish): others need not wait for this site.
  virtual void leaving() = 0;
};

}  // namespace isthmus::inter
