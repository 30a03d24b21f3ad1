// How digests, lists of sites and parts are laid out, in records, messages and files alike. Readers
// trust nothing: counts are bounded, and what has two encodings is refused.
#pragma once

#include <vector>

#include "base/byte_stream.h"
#include "inter/record.h"
#include "security/hash.h"

namespace isthmus::inter {

void put(ByteWriter& out, const security::Digest& digest);
security::Digest get_digest(ByteReader& in);

// Strictly ascending.
void put_sites(ByteWriter& out, const std::vector<SiteId>& sites);
std::vector<SiteId> get_sites(ByteReader& in);

// Strictly ascending by site.
void put_parts(ByteWriter& out, const std::vector<Part>& parts);
std::vector<Part> get_parts(ByteReader& in);

}  // namespace isthmus::inter
