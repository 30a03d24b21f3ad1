// One valid encoding of everything that a peer can say, with its decoder: what tests truncate and
// spoil, and where fuzzing begins.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "inter/messages.h"

namespace isthmus::inter {

struct SampleMessage {
  std::string name;
  Bytes bytes;
  // Decodes, and encodes again what was understood; nothing: refused. What is understood has one
  // encoding, so the same bytes come out, but for `normalises`.
  std::function<std::optional<Bytes>(std::span<const std::byte>)> again;
  // A body follows that may have any length: shorter than this the message is refused.
  std::size_t fixed_bytes = SIZE_MAX;
  bool normalises = false;
};

Record sample_record(std::uint64_t step, std::size_t sites);
Certificate sample_certificate(std::uint64_t step);
std::vector<SampleMessage> sample_messages();

}  // namespace isthmus::inter
