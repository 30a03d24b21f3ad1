// OuterSync: what the trainer of a site needs of its gateway. Behind it stands an attached gateway
// (attached_sync.cc, over inter/attach_client.h), or a test's. One rank of the site calls it, on
// one thread; parameters are canonical: whole tensors in the order of Model::tensors(), those that
// train, end to end without gaps, f32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/event_log.h"
#include "base/result.h"
#include "runtime/model.h"
#include "runtime/train_status.h"

namespace isthmus::runtime {

// The agreed state after an outer step.
struct OuterState {
  // What it replaces: x ← parameters + (x − from).
  enum class From : std::uint8_t {
    nothing,       // the first state this process sees: x ← parameters
    base,          // the state before: what was trained since is in no contribution
    contribution,  // what was contributed last
  };

  std::uint64_t step = 0;  // 0: the state the run began with
  std::string record;      // hash of its record, hex
  std::string run;         // what it is a state of, hex
  From from = From::nothing;
  bool final_step = false;         // nothing follows
  bool contribution_open = false;  // this site's contribution to step + 1 is already made
  std::uint64_t contributed = 0;   // newest step whose contribution of this site is not lost
  std::vector<float> parameters;
};

class OuterSync {
 public:
  virtual ~OuterSync() = default;

  // Introduces the site's ranks; the state to begin at follows in next_state(). `initial` are the
  // parameters of a new run; ignored when there is a state. Returns at once.
  virtual void attach(std::span<const CanonicalTensor> tensors, std::span<const float> initial) = 0;

  // Hands over the parameters trained on the last state (of `step` − 1), and how many tokens were
  // trained in them. Returns when they are copied; the next state tells whether they were used.
  // Errors: those of the gateway, which refuses this site for good (mismatch, non_finite, …).
  virtual Result<void> contribute(std::uint64_t step, std::span<const float> parameters,
                                  std::uint64_t tokens) = 0;

  // The newest state not yet returned; nothing when there is none within `timeout`, also while the
  // gateway is away: it will be started again. Errors as above.
  virtual Result<std::optional<OuterState>> next_state(Nanoseconds timeout) = 0;

  // For monitors, and so that other sites wait for this one. Never blocks.
  virtual void progress(const TrainStatus& status) = 0;

  // The user stops this site: others need not wait for it.
  virtual void leave() = 0;
};

// Through the gateway's socket. `model_settings`: inter::AttachRequest. `log` outlives it.
std::unique_ptr<OuterSync> make_attached_sync(const std::string& socket_path,
                                              const std::string& model_settings, EventLog& log);

}  // namespace isthmus::runtime
