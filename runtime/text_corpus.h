// Preparing a text: split it into what is trained on and what is held out to judge by. Paragraphs
// are what blank lines part; of every 20 the 8th is held out. Joined again by blank lines, both
// parts stay plain text.
#pragma once

#include <cstdint>
#include <string>

#include "base/disk.h"
#include "base/result.h"

namespace isthmus::runtime {

inline constexpr std::uint64_t kHeldOutPeriod = 20;
inline constexpr std::uint64_t kHeldOutPlace = 7;  // paragraph i is held out when i % 20 == 7

struct PreparedText {
  std::uint64_t paragraphs = 0;
  std::uint64_t train_bytes = 0;
  std::uint64_t held_out_bytes = 0;
};

// Reads plain or gzipped text (told apart by its first bytes), writes both parts in bounded memory
// and replaces the two files only when both are whole and on disk. Errors: not_found, permission,
// io, disk_full, corrupt (broken gzip), invalid_argument (too few paragraphs to hold one out; two
// of the three files are one). After an error nothing new is left.
Result<PreparedText> prepare_text(Disk& disk, const std::string& source,
                                  const std::string& train_path, const std::string& held_out_path);

}  // namespace isthmus::runtime
