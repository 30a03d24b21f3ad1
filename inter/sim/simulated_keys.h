// SimulatedKeys: signatures that only this simulation can make: as unforgeable between its sites as
// real ones, and a hundred times cheaper. What is signed is shown to the VoteWatch. Not for
// anything else.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/byte_stream.h"
#include "inter/sim/vote_watch.h"
#include "security/hash.h"
#include "security/roster.h"
#include "security/signature.h"

namespace isthmus::inter::sim {

class SimulatedSigner final : public security::Signer {
 public:
  // nullptr: nobody watches.
  explicit SimulatedSigner(std::uint32_t site, VoteWatch* watch = nullptr)
      : site_(site), watch_(watch) {}
  security::Signature sign(std::string_view context,
                           std::span<const std::byte> message) const override {
    if (watch_ != nullptr) watch_->signed_by(site_, context, message);
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
  VoteWatch* watch_;
};

// Knows the sites of one roster, as the real one does: of others it takes nothing for good. Without
// a roster: every site.
class SimulatedVerifier final : public security::Verifier {
 public:
  SimulatedVerifier() = default;
  explicit SimulatedVerifier(const security::Roster& roster) : known_(std::in_place) {
    for (const auto& site : roster.sites) known_->insert(site.id);
    for (const auto& site : roster.former) known_->insert(site.id);
  }

  bool verify(std::uint32_t site, std::string_view context, std::span<const std::byte> message,
              const security::Signature& signature) const override {
    return (!known_ || known_->count(site) > 0) &&
           SimulatedSigner::of(site, context, message) == signature;
  }

 private:
  std::optional<std::set<std::uint32_t>> known_;
};

}  // namespace isthmus::inter::sim
