// AttachServer::Server: the ranks that are attached to a gateway, their shared memory, and the
// values that go through it. Shared with what runs on the loop for it, so that it outlives the
// AttachServer until that has ended.
//
//   attach_server.cc     who attaches, and what ranks say
//   attached_values.cc   the copies: contributions gathered, states told
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/event_log.h"
#include "base/large_vector.h"
#include "inter/attach_listener.h"
#include "inter/attach_messages.h"
#include "inter/attach_server.h"
#include "inter/box_runs.h"
#include "inter/rank_values.h"
#include "inter/shared_memory.h"

namespace isthmus::inter {

struct AttachedRank {
  enum class InitialState { none, offered, taken };

  AttachConnectionPointer connection;
  std::vector<Box> boxes;
  std::uint64_t elements = 0;
  std::shared_ptr<SharedMemory> memory;  // none until the ranks are complete, or without elements
  bool has_memory = false;
  std::uint64_t state_offset = 0;
  InitialState initial = InitialState::none;
  std::optional<attach::Contribute> contribution;
  std::optional<std::uint64_t> told;  // the publication in its state area, until it took it
  bool state_waits = false;           // for that area
  bool state_is_there = false;        // in it already: it was drafted
  RankStatus status;
};

class AttachServer::Server final : public AttachReceiver,
                                   public std::enable_shared_from_this<AttachServer::Server> {
 public:
  Server(Loop& loop, EventLog& log, std::string path, OuterSteps& outer,
         std::function<GatewayStatus()> status, AttachOptions options);

  void serve_link_tests(std::function<Result<std::string>(const attach::LinkTest&)> test,
                        std::function<void(std::uint64_t number)> stop) {
    link_test_ = std::move(test);
    stop_link_test_ = std::move(stop);
  }
  Result<void> listen();
  void stop();
  void publish(const Published& state);
  std::shared_ptr<StateDraft> draft();
  bool reading() const { return !published_values_.empty(); }
  bool all_took() const {
    return complete_ && published_ && !reading() &&
           std::ranges::none_of(
               ranks_, [](const auto& one) { return one.second.told || one.second.state_waits; });
  }
  void forget();
  void refuse(const Error& why);
  std::vector<RankStatus> rank_status() const;

 private:
  using Self = std::shared_ptr<Server>;

  // Messages.
  void on_message(const AttachConnectionPointer& connection, attach::Kind kind,
                  std::span<const std::byte> body) override;
  void on_closed(const AttachConnectionPointer& connection) override;
  void handle_of_rank(AttachedRank& rank, attach::Kind kind, std::span<const std::byte> body);
  Result<void> on_attach(const AttachConnectionPointer& connection, attach::Attach message);
  Result<void> check_size(const std::vector<TensorInfo>& tensors) const;
  Result<AttachedRank> check_attach(const AttachConnectionPointer& connection,
                                    const attach::Attach& message, const ModelLayout& layout);
  void on_link_test(const AttachConnectionPointer& connection, const attach::LinkTest& wish);
  void forget_link_test(const AttachConnectionPointer& connection);
  void on_initial(AttachedRank& rank);
  void on_contribute(AttachedRank& rank, const attach::Contribute& message);
  void on_took(AttachedRank& rank, const attach::Took& message);
  void on_progress(AttachedRank& rank, const attach::Progress& message);

  // The ranks as one.
  using Era = std::pair<std::uint64_t, std::uint64_t>;
  static Task<void> complete(Self self, std::uint64_t generation);
  Task<Result<void>> give_memory();
  void remove_rank(std::uint32_t number);
  void refuse_all(const Error& why);
  void not_complete();
  void change_generation() {
    ++generation_;
    pieces_.reset();
    state_areas_.reset();
    close_draft();
  }
  void tell_soon();
  static Task<void> tell_all(Self self, Era began);
  void gather_initial_if_all();
  void gather_contribution_if_all();
  static Task<void> gather_initial(Self self, Era began);
  static Task<void> contribute(Self self, Era began, std::uint64_t step, std::uint64_t tokens);
  void contribution_read(Era began, std::uint64_t step);
  void close_draft();
  // Where the complete ranks' areas of one kind are; nothing when the era ended meanwhile.
  Task<std::shared_ptr<const RankPieces>> find_areas(Era began, bool of_states);
  // Calls with each run of the rank's boxes and the place in its areas where it stands; `budget`
  // elements are left before others have a turn. False: the era has ended.
  using Copy = std::function<void(const BoxRun& run, std::uint64_t place)>;
  Task<bool> each_run(std::uint32_t number, Era began, std::uint64_t& budget, const Copy& copy);
  // All contribution areas as one canonical vector; nothing when the era ended meanwhile.
  Task<std::optional<LargeVector<float>>> gather(Era began);
  // Changes when what a gather is about does.
  Era era() const { return {generation_, publication_}; }

  Loop& loop_;
  EventLog& log_;
  std::string path_;
  OuterSteps& outer_;
  std::function<GatewayStatus()> gateway_status_;
  std::function<Result<std::string>(const attach::LinkTest&)> link_test_;  // empty: none
  std::function<void(std::uint64_t number)> stop_link_test_;
  std::map<AttachConnectionPointer, std::uint64_t> link_test_askers_;  // with the test's number
  AttachOptions options_;
  std::unique_ptr<AttachListener> listener_;
  bool stopped_ = false;

  std::optional<Error> refused_;
  std::uint32_t world_ = 0;  // of the ranks that are attached, or were last
  ModelLayout layout_;
  std::map<std::uint32_t, AttachedRank> ranks_;
  bool complete_ = false;
  std::uint64_t generation_ = 0;  // counts changes of ranks_
  bool gathering_ = false;
  // Of generation_, once they were needed.
  std::shared_ptr<const RankPieces> pieces_;       // shared with contributions
  std::shared_ptr<const RankPieces> state_areas_;  // shared with drafts

  std::uint64_t publication_ = 0;
  bool published_ = false;  // since the ranks are complete
  attach::State latest_;
  bool telling_ = false;                     // somebody copies the newest state to the ranks
  std::span<const float> published_values_;  // the gateway's; {} once it is free to change them
  LargeVector<float> waiting_values_;        // the same, for ranks whose area was not free
  std::shared_ptr<RankDraft> draft_;         // shared with who computes the next state
};

}  // namespace isthmus::inter
