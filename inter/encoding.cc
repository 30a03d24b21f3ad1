#include "inter/encoding.h"

#include <algorithm>
#include <functional>

#include "base/assert.h"

namespace isthmus::inter {
void put(ByteWriter& out, const security::Digest& digest) { out.raw(digest.bytes); }

security::Digest get_digest(ByteReader& in) {
  security::Digest digest;
  const auto bytes = in.raw(digest.bytes.size());
  std::copy(bytes.begin(), bytes.end(), digest.bytes.begin());
  return digest;
}

void put_sites(ByteWriter& out, const std::vector<SiteId>& sites) {
  out.put(static_cast<std::uint32_t>(sites.size()));
  for (const auto site : sites) out.put(site);
}

std::vector<SiteId> get_sites(ByteReader& in) {
  std::vector<SiteId> sites(in.count(kSitesMax, sizeof(SiteId)));
  for (auto& site : sites) site = in.get<SiteId>();
  if (std::adjacent_find(sites.begin(), sites.end(), std::greater_equal<>()) != sites.end())
    in.fail();
  return sites;
}

void put_parts(ByteWriter& out, const std::vector<Part>& parts) {
  out.put(static_cast<std::uint32_t>(parts.size()));
  for (const auto& part : parts) {
    out.put(part.site);
    put(out, part.root);
    ISTHMUS_ASSERT(part.tokens <= kTokensMax);  // get_parts refuses more
    out.put(part.tokens);
    put(out, part.base);
  }
}

std::vector<Part> get_parts(ByteReader& in) {
  std::vector<Part> parts(in.count(kSitesMax, 4 + 32 + 8 + 32));
  for (auto& part : parts) {
    part.site = in.get<SiteId>();
    part.root = get_digest(in);
    part.tokens = in.get<std::uint64_t>();
    part.base = get_digest(in);
    if (part.tokens > kTokensMax) in.fail();
  }
  const auto not_before = [](const Part& a, const Part& b) { return a.site >= b.site; };
  if (std::adjacent_find(parts.begin(), parts.end(), not_before) != parts.end()) in.fail();
  return parts;
}

}  // namespace isthmus::inter
