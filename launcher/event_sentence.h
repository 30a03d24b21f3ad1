// What an event of the log says to a person who watches a run: a sentence for those that people
// meet, the bare fields for the others.
#pragma once

#include <string>
#include <string_view>

#include "launcher/event_tail.h"

namespace isthmus::launcher {

// Whoever watches wants to know: warnings, alarms, and the rate limit that holds from now on.
bool is_for_people(const LoggedEvent& event);
// "warning: the session with beta has ended: …"; "" for what another event says as well.
std::string sentence_of(const LoggedEvent& event);
// Of a link that its window holds up.
std::string window_sentence(std::string_view peer);

}  // namespace isthmus::launcher
