// SimulatedKeys: signatures that only this simulation can make: as unforgeable between its sites as
// real ones, and a hundred times cheaper. Not for anything else.
#pragma once

#include <algorithm>

#include "base/byte_stream.h"
#include "security/hash.h"
#include "security/signature.h"

namespace isthmus::inter::sim {

class SimulatedSigner final : public security::Signer {
 public:
  explicit SimulatedSigner(std::uint32_t site) : site_(site) {}
  security::Signature sign(std::string_view context,
                           std::span<const std::byte> message) const override {
    return of(site_, context, message);
  }

  static security::Signature of(std::uint32_t site, std::string_view context,
                                std::span<const std::byte> message) {
    security::Hasher hasher;
    hasher.update(ByteWriter().string("simulated").put(site).string(context).view());
    hasher.update(message);
    const auto digest = hasher.finish();
    security::Signature signature;
    std::copy(digest.bytes.begin(), digest.bytes.end(), signature.bytes.begin());
    return signature;
  }

 private:
  std::uint32_t site_;
};

class SimulatedVerifier final : public security::Verifier {
 public:
  bool verify(std::uint32_t site, std::string_view context, std::span<const std::byte> message,
              const security::Signature& signature) const override {
    return SimulatedSigner::of(site, context, message) == signature;
  }
};

}  // namespace isthmus::inter::sim
