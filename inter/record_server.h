// RecordServer: sends the certificates of the run to whoever asks for them, from which a peer
// learns what was decided (PROTOCOL.md, "Return"). They are control, which goes before bulk: so one
// answer after another, no more than a part of a rate limit, to each peer the next ones once it has
// the last ones, and seldom the same again. A short question asked often does not fill a line.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "inter/burst_pace.h"
#include "inter/owned_tasks.h"
#include "inter/peers.h"
#include "inter/rate_limit.h"
#include "inter/record.h"

namespace isthmus::inter {

class RecordServer {
 public:
  // Of the run, while there is one: record 0, and those after it in order.
  struct Context {
    Loop& loop;
    Peers& peers;
    const RateLimit& limit;
    const std::optional<Certificate>& genesis;
    const std::vector<Certificate>& chain;
  };
  explicit RecordServer(Context context) : context_(context), tasks_(context.loop) {}

  void on_request(Link& link, const RecordRequest& request);
  // A peer may have acknowledged the last ones.
  void send_wanted();

 private:
  struct Wanted {
    SiteId by = 0;
    std::uint64_t from = 0;  // step
  };
  // The last answer to a peer.
  struct Sent {
    std::uint64_t session = 0;
    std::uint64_t message = 0;         // of the link's, the last one of it
    std::uint64_t from = 0, next = 0;  // steps
    Nanoseconds when = 0;
    std::size_t bytes_max = 0;  // of the next one: as the line is found to take them
    BurstPace again{4, kSecond};
  };
  bool has_last(SiteId site) const;
  std::size_t send(PeerSite& peer, std::uint64_t from);

  Context context_;
  std::deque<Wanted> wanted_;  // of each peer one, answered in turn
  std::map<SiteId, Sent> sent_;
  bool sending_ = false;
  Nanoseconds due_ = 0;
  OwnedTasks tasks_;  // its timer: the next answer
};

}  // namespace isthmus::inter
