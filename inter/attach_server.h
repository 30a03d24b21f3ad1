// AttachServer: the ranks of a site as the gateway sees them, when they are real processes. Speaks
// inter/ATTACH.md on a unix socket and through shared memory; gathers what the ranks hold into
// whole canonical tensors and cuts agreed states for them; answers `status`.
//
// Ranks are not trusted to live, to be quick or to send sense: connections, messages and memory are
// bounded, values are copied before anything looks at them, and a rank that misbehaves is refused
// with a sentence. All on the loop's thread; copies of values are cut into slices, so that the loop
// keeps its time.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/event_log.h"
#include "inter/attach_listener.h"
#include "inter/loop.h"
#include "inter/ranks.h"
#include "inter/status.h"

namespace isthmus::inter {

struct AttachOptions {
  std::uint32_t world_max = 4096;      // ranks
  std::uint64_t memory_bytes_max = 0;  // shared with all ranks; 0: 3/4 of the machine's
  ListenerOptions listener;
};

class AttachServer final : public Ranks {
 public:
  // `path`: the socket; the caller holds the lock of its folder. `status` is asked for each request
  // of `isthmus status`. The references outlive the server.
  AttachServer(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
               std::function<GatewayStatus()> status, AttachOptions options = {});
  // What `isthmus link test` asks for; without it, that is refused. Before listen(). A test whose
  // last asker's connection has closed is stopped, under its number.
  void serve_link_tests(std::function<Result<std::string>(const attach::LinkTest&)> test,
                        std::function<void(std::uint64_t number)> stop);
  // Closes all connections and removes the socket. Ranks that were not refused see `closed`, and
  // come again.
  ~AttachServer() override;
  AttachServer(const AttachServer&) = delete;
  AttachServer& operator=(const AttachServer&) = delete;

  // Makes the socket (mode 0600, replacing what a dead gateway left) and serves. Errors: io,
  // permission, not_found (no such folder).
  Result<void> listen();

  // Ranks. May be called from within OuterSteps' functions. Without ranks, publish() does nothing:
  // attached() follows when they are back.
  void publish(const Published& state) override;
  std::shared_ptr<StateDraft> draft() override;
  bool reading() const override;
  bool all_took() const override;
  void forget() override;
  void refuse(const Error& why) override;
  std::vector<RankStatus> status() const override;

 private:
  class Server;
  std::shared_ptr<Server> server_;  // shared with its coroutines, which may outlive this
};

}  // namespace isthmus::inter
