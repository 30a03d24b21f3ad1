// Script: an input that is a conversation. Steps follow one another as
//
//   u8 what | u8 who | u16 size | bytes
//
// and what is cut short ends with what there is, so that a mutation anywhere leaves the rest a
// script.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/byte_stream.h"

namespace isthmus {

struct ScriptStep {
  std::uint8_t what = 0;  // bits, or a number: the target's to say
  std::uint8_t who = 0;
  std::span<const std::byte> bytes;
};

template <class Act>
void each_step(std::span<const std::byte> input, const Act& act) {
  constexpr std::size_t kStepsMax = 256;
  for (std::size_t steps = 0; steps < kStepsMax && input.size() >= 4; ++steps) {
    ByteReader in(input);
    ScriptStep step;
    step.what = in.get<std::uint8_t>();
    step.who = in.get<std::uint8_t>();
    const auto size = in.get<std::uint16_t>();
    step.bytes = in.raw(std::min<std::size_t>(size, in.rest().size()));
    act(step);
    input = in.rest();
  }
}

class ScriptWriter {
 public:
  ScriptWriter& step(std::uint8_t what, std::uint8_t who, std::span<const std::byte> bytes = {}) {
    out_.put(what).put(who).put(static_cast<std::uint16_t>(bytes.size())).raw(bytes);
    return *this;
  }
  Bytes take() { return out_.take(); }

 private:
  ByteWriter out_;
};

}  // namespace isthmus
