// Files that hold secret keys: a title line, then one line of hexadecimal digits per key. They are
// made readable by their owner alone, from the start, and are never overwritten; one that others
// could read is refused. The text passes through locked memory only (security/secret.h).
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "security/secret.h"

namespace isthmus::security {

// Mode 0600; durable when it returns. already_exists: whatever is there stays as it is.
Result<void> write_secret_file(const std::string& path, std::string_view title,
                               std::initializer_list<std::span<const std::byte>> keys);

// As many keys of 32 bytes as the file must hold. Errors: permission (group or others have any
// access, or another user owns it; the sentence says what to type), corrupt (another title or
// shape), not_found, io.
Result<std::vector<SecretBytes>> read_secret_file(const std::string& path, std::string_view title,
                                                  std::size_t keys);

}  // namespace isthmus::security
