// What tells an edited file from the one it was, without reading all of a large one.
#pragma once

#include <cstdint>

#include "base/disk.h"
#include "base/result.h"
#include "security/hash.h"

namespace isthmus::runtime {

// Of a file of `bytes`: all of a small one, of a large one 64 blocks spread over it. Errors: those
// of File::read_at.
Result<security::Digest> sampled_digest(const File& file, std::uint64_t bytes);

}  // namespace isthmus::runtime
