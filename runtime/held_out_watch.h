// What a training says of the model on held-out texts while it goes on.
#pragma once

#include <optional>
#include <span>

#include "runtime/progress.h"
#include "runtime/trainer.h"

namespace isthmus::runtime {

// The mean over options.held_out of bits per byte, with the parameters as they are; each text's
// loss goes to the event log and to the observers. Nothing where it is not finite, or a text cannot
// be read: then an alarm says so.
std::optional<double> watch_held_out(const TrainParts& parts, const TrainOptions& options,
                                     const Progress& progress,
                                     std::span<TrainObserver* const> observers);

}  // namespace isthmus::runtime
