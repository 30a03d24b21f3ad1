#include "launcher/event_sentence.h"

#include <fmt/format.h>

namespace isthmus::launcher {
namespace {

std::string bare(const LoggedEvent& event) {
  std::string text = event.id;
  if (event.outer_step >= 0) text += fmt::format(" step {}", event.outer_step);
  if (!event.peer.empty()) text += fmt::format(" peer {}", event.peer);
  for (const auto& [name, value] : event.fields)
    if (name != "left_out" || value != "0") text += fmt::format(" {}={}", name, value);
  return text;
}

// A dialing end's handshake was refused for its key: on the control lane, on the bulk lane.
constexpr std::string_view kKeyRefused = "handshake_failed_auth";
constexpr std::string_view kNoConnection = "no_connection", kNoHandshake = "handshake_failed";
constexpr std::string_view kSilence = "silence";
constexpr std::string_view kBulkKeyRefused = "the other end refuses our key";

std::string unreachable(const LoggedEvent& event) {
  const auto reason = event.field("reason");
  if (reason != kKeyRefused && reason != kBulkKeyRefused)
    return fmt::format("{} cannot be reached{} at {}: {}", event.peer,
                       event.field("lane") == "bulk" ? " for bulk data" : "",
                       event.field("address"),
                       reason == kNoConnection
                           ? "nothing answers there: its gateway does not run, or the way to it is "
                             "closed; it is tried again and again"
                       : reason == kNoHandshake
                           ? "what answers there ended the connection before it was known: its "
                             "gateway stops or starts, or that is none; it is tried again"
                           : reason);
  if (event.field("lane") == "bulk") return {};
  return fmt::format(
      "{} does not know this site's key: the roster there does not list it, or another key for it. "
      "The operator adds it (isthmus roster add), signs, and gives every site the new roster",
      event.peer);
}

std::string plain(const LoggedEvent& event) {
  const auto& id = event.id;
  const auto why = event.field("why");
  if (id == "wire_unreachable") return unreachable(event);
  if (id == "gateway_away") return "the gateway is away; the ranks wait until it is started again";
  if (id == "session_refused") return fmt::format("no session with {}: {}", event.peer, why);
  if (id == "session_refused_by_peer")
    return fmt::format("{} refuses a session: {}", event.peer, why);
  if (id == "session_ended")
    return fmt::format("the session with {} ended: {}", event.peer,
                       why == kSilence ? "nothing is heard of it: its gateway was killed or stands "
                                         "still, or the way to it is cut"
                                       : why);
  if (id == "wire_key_refused")
    return fmt::format("a connection from {} was refused: {}", event.field("address"),
                       event.field("reason"));
  if (id == "wire_stranger")
    return fmt::format("a connection ended before it said who it is: {}", event.field("what"));
  if (id == "wire_no_address") return fmt::format("{}: {}", event.peer, event.field("reason"));
  if (id == "duplicate_identity")
    return fmt::format(
        "another process says that it is {}: that site runs twice, or somebody else has its key. "
        "The one that came first keeps the session",
        event.peer);
  if (id == "gateway_failed") return fmt::format("the gateway ends: {}", why);
  if (id == "attach_refused")
    return fmt::format("the gateway does not take rank {}: {}", event.field("rank"),
                       event.field("reason"));
  if (id == "training_failed") return fmt::format("training failed: {}", why);
  if (id == "tokens_lost")
    return fmt::format(
        "{} tokens that were trained are lost: no contribution or checkpoint had "
        "them",
        event.field("tokens"));
  if (id == "sites_missed") return fmt::format("it waits for {}", event.field("waits_for"));
  if (id == "end_not_everywhere") {
    const auto sites = event.field("sites");
    const bool several = sites.find(" and ") != sites.npos || sites.find(", ") != sites.npos;
    return fmt::format(
        "{0}: not known to have the last step ({1}): start this site again when {0} {2} back, and "
        "{3} it",
        sites, event.outer_step, several ? "are" : "is", several ? "they fetch" : "it fetches");
  }
  if (id == "initial_replaced" || id == "too_few_members" || id == "votes_lost" ||
      id == "ranks_hang")
    return why;
  if (id == "ranks_hang_no_more")
    return event.field("here") == "true" ? "its ranks go on" : "its ranks have gone";
  if (id == "disk_failed")
    return fmt::format("a contribution to step {} cannot be written, and is tried again: {}",
                       event.outer_step, why);
  if (id == "disk_takes_again")
    return fmt::format("the disk takes {} again, after {} s", event.field("what"),
                       event.field("seconds"));
  if (id == "contribution_failed")
    return fmt::format("this site's contribution to step {} failed: {}", event.outer_step, why);
  if (id == "checkpoint_failed")
    return fmt::format("the checkpoint cannot be written: {}; {}", why, event.field("then"));
  if (id == "checkpoint_damaged")
    return fmt::format("the checkpoint {} is damaged: {}; {}", event.field("checkpoint"), why,
                       event.field("then"));
  if (id == "data_changed") return why;
  if (id == "roster_expired")
    return fmt::format("the roster has expired: {}", event.field("effect"));
  if (id == "state_fetch_stopped")
    return fmt::format("the state of step {} did not come whole from {}: it is asked for again",
                       event.outer_step, event.peer);
  if (id == "merge_base_not_kept")
    return fmt::format("the disk has no room for all of the checkpoint: {}; {}", why,
                       event.field("then"));
  if (id == "feedback_lost")
    return fmt::format("the feedback of this site's contribution to step {} is lost: {}; {}",
                       event.outer_step, why, event.field("then"));
  if (id == "removed_for_room")
    return fmt::format("contributions before step {} are removed: {}; {}", event.outer_step, why,
                       event.field("then"));
  if (id == "file_damaged")
    return fmt::format("a file is damaged: {}; {}", event.field("what"), event.field("then"));
  if (id == "window_full") return window_sentence(event.peer);
  if (id == "rate_limit") return fmt::format("the rate limit is {}", event.field("holds"));
  if (id == "traffic_not_written")
    return fmt::format("what the report says of traffic is not saved: {}", why);
  if (id == "genesis_refused")
    return fmt::format("{} knows a run {} that this site does not take for its own: {}", event.peer,
                       event.field("run").substr(0, 16), why);
  if (id == "run_not_shown")
    return fmt::format("{} names a run {}, and does not show how it began: {}", event.peer,
                       event.field("run").substr(0, 16), event.field("then"));
  if (id == "vote_file_lost")
    return "this site has lost its votes (or run_dir is another folder than before: then stop it "
           "and name the right one), and does not vote until the other voters take it back, "
           "which a majority of all voters must agree on; where too few of them are left, the "
           "operator names the state to go on from (isthmus roster recover)";
  return bare(event);
}

}  // namespace

bool is_for_people(const LoggedEvent& event) {
  return event.severity == "warning" || event.severity == "alarm" || event.id == "rate_limit" ||
         event.id == "disk_takes_again" || event.id == "ranks_hang_no_more";
}

std::string window_sentence(std::string_view peer) {
  return fmt::format(
      "what {} sends fills the window in each round trip, so the line may carry more: raise "
      "gateway.receive_window here",
      peer);
}

std::string sentence_of(const LoggedEvent& event) {
  const auto text = plain(event);
  if (text.empty() || event.severity == "info") return text;
  return fmt::format("{}: {}", event.severity, text);
}

}  // namespace isthmus::launcher
