// The operator's key: the root of trust. It signs rosters and nothing else; each site's file pins
// its public half. It belongs on the operator's own machine, not on a site.
#pragma once

#include <string>

#include "base/disk.h"
#include "base/result.h"
#include "security/signing_key.h"

namespace isthmus::security {

// PATH holds the secret, PATH.pub the line that goes into every site's file: operator_key = "…".
Result<void> save_operator_key(Disk& disk, const SigningKey& key, const std::string& path);

// Errors as in security/secret_file.h.
Result<SigningKey> load_operator_key(const std::string& path);

}  // namespace isthmus::security
