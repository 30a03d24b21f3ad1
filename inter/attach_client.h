// AttachClient: what a rank of ours uses to hand parameters to its site's gateway and to get agreed
// ones back (inter/ATTACH.md, which is all that somebody else's rank needs). It moves values and
// keeps the books of what was contributed and taken; training and merging are its caller's.
//
//   client = AttachClient::attach(path, request, timeout);
//   client->initial(x);
//   for (;;) {
//     state = client->wait_state(timeout);            // step k; closed: reattach(), ask again
//     x = merge(state, x); base = state.parameters;   // see MergeFrom
//     client->took();
//     if (state.final_step) break;
//     if (state.contribution_open) continue;          // step k + 1 has our contribution already
//     train inner steps, with client->progress(…) now and then;
//     client->contribute(k + 1, x, tokens);           // may compute on from here
//   }
//
// Calls block at most as long as they say, and return early without a state when a signal arrives.
// For one thread. Errors of every call: closed (the gateway is gone: reattach() until it is back,
// then go on as if nothing had happened), or the code the gateway refused with and its sentence
// (mismatch, non_finite, bad_frame, …: end).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "inter/model_layout.h"
#include "inter/ranks.h"
#include "security/hash.h"

namespace isthmus::inter {

struct AttachRequest {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;  // ranks of this site that attach to this gateway
  // Of the model, what shapes do not say (heads, the base of rotary positions), in one line: equal
  // at all ranks and all sites.
  std::string model_settings;
  std::vector<TensorInfo> tensors;  // all of the model, in ascending byte order of names
  // What this rank contributes and takes; `tensor` is the index above. The boxes of all ranks cover
  // every element exactly once. None: this rank sends tokens and is told steps, without values.
  std::vector<Box> boxes;
};

// What x is merged relative to: x ← parameters + (x − from), per element.
enum class MergeFrom : std::uint8_t {
  nothing,       // the first state of this process: x ← parameters
  base,          // the last state taken: what was computed since has not been contributed
  contribution,  // AttachClient::contributed(): the rest has been handed over
};

struct AgreedState {
  std::uint64_t step = 0;
  security::Digest record;
  security::Digest run;
  MergeRule merge = MergeRule::keep_progress;
  MergeFrom from = MergeFrom::nothing;
  bool final_step = false;
  bool contribution_open = false;  // as in Published
  std::uint64_t contributed = 0;   // likewise
  // The rank's boxes, dense and row-major, one after another. Valid until took() or reattach().
  std::span<const float> parameters;
};

struct RankProgress {
  std::uint64_t inner_step = 0;
  double loss = 0;
  double tokens_per_second = 0;
  std::string state;  // "computing", "waiting for the outer step", …; at most 200 bytes
};

class AttachClient {
 public:
  // Not attached yet, as after `closed`: reattach() next. Errors: invalid_argument (the request).
  static Result<std::unique_ptr<AttachClient>> create(const std::string& path,
                                                      AttachRequest request);
  // The same, and reattach().
  static Result<std::unique_ptr<AttachClient>> attach(const std::string& path,
                                                      AttachRequest request, Nanoseconds timeout);
  ~AttachClient();
  AttachClient(const AttachClient&) = delete;
  AttachClient& operator=(const AttachClient&) = delete;

  // Connects, presents this rank, and waits until all ranks of the site have and the gateway has
  // their memory. Tries again until the time is up where no gateway listens yet. What was
  // contributed and is not part of an agreed state yet is handed over anew when the gateway lacks
  // it; nothing of what the caller knows changes. Errors also: timeout (call again: a connection
  // that waits for the gateway's answer goes on waiting), unsupported (another protocol version),
  // already_exists (this rank is attached by a live process), permission.
  Result<void> reattach(Nanoseconds timeout);

  // How many values the boxes hold: the size of all spans here.
  std::size_t elements() const;

  // Parameters to begin the run with; once, before the first state. Ignored by a gateway that has a
  // state.
  Result<void> initial(std::span<const float> parameters);

  // Hands over parameters for `step` (that of the last state taken + 1) and the tokens trained in
  // them. Copies and returns at once. The next state says by its `from` whether the gateway used it
  // or was already past that step. After `closed` it has been noted and leaves with reattach();
  // saying it again changes nothing.
  Result<void> contribute(std::uint64_t step, std::span<const float> parameters,
                          std::uint64_t tokens);
  // What was last contributed, kept in the shared memory; valid until the next contribute() or
  // reattach().
  std::span<const float> contributed() const;

  // A state that the caller has not seen, if there is one within `timeout`; 0: now.
  Result<std::optional<AgreedState>> wait_state(Nanoseconds timeout);
  // The last state has been merged: its memory is the gateway's again.
  Result<void> took();

  // For status, and so that the other sites wait for this one; a few a second at most. Never
  // blocks: dropped when the gateway does not keep up.
  Result<void> progress(const RankProgress& progress);

  // This rank ends for good reason.
  Result<void> leaving();

 private:
  class Connection;
  explicit AttachClient(std::unique_ptr<Connection> connection);
  std::unique_ptr<Connection> connection_;
};

}  // namespace isthmus::inter
