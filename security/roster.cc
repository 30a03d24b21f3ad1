#include "security/roster.h"

#include <fmt/format.h>
#include <sodium.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/byte_stream.h"
#include "base/host_form.h"
#include "security/sodium_ready.h"

namespace isthmus::security {

bool is_site_name(std::string_view text) {
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

namespace {

struct Address {
  std::string host;  // without brackets
  unsigned port = 0;
};

// "host:port" with a port that leaves room for the next one.
std::optional<Address> read_address(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || text.size() > 255) return std::nullopt;
  const auto host = text.substr(0, colon);
  const auto port = text.substr(colon + 1);
  if (port.empty() || port.size() > 5) return std::nullopt;
  unsigned number = 0;
  for (char c : port) {
    if (c < '0' || c > '9') return std::nullopt;
    number = 10 * number + static_cast<unsigned>(c - '0');
  }
  if (number == 0 || number > 65534) return std::nullopt;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  const auto inner = bracketed ? host.substr(1, host.size() - 2) : host;
  const bool fits = !inner.empty() && std::all_of(inner.begin(), inner.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || (bracketed && (c == ':' || c == '%'));
  });
  if (!fits || bracketed != (inner.find(':') != std::string_view::npos)) return std::nullopt;
  return Address{std::string(inner), number};
}

// Why nobody could dial it; "": nothing in the text speaks against it.
std::string_view why_out_of_reach(const std::string& host) {
  switch (form_of_host(host)) {
    case HostForm::none:
      return "is neither an address nor a name";
    case HostForm::every:
      return "is all addresses of a machine, where a gateway may listen but nobody can dial: write "
             "one that others reach it at";
    case HostForm::link_local:
      return "is of one link alone, and has another scope on each machine: write one that all "
             "sites reach";
    case HostForm::name:
    case HostForm::number:
      break;
  }
  return {};
}

class Check {
 public:
  explicit Check(const Roster& roster) : roster_(roster) {}

  std::vector<Error> run() {
    require_sodium();
    if (roster_.expires <= 0)
      fault(ErrorCode::invalid_argument, "the roster has no expiry date: add `expires`");
    if (roster_.sites.empty())
      fault(ErrorCode::invalid_argument, "the roster lists no site");
    else if (roster_.voters() == 0)
      fault(ErrorCode::invalid_argument,
            "no site of the roster is a voter: nothing could ever be decided");
    if (roster_.sites.size() > kRosterSitesMax)
      fault(ErrorCode::too_large, "the roster lists {} sites: a federation has {} at most",
            roster_.sites.size(), kRosterSitesMax);
    for (std::size_t i = 0; i < roster_.sites.size(); ++i) {
      if (i > 0 && roster_.sites[i].id <= roster_.sites[i - 1].id)
        fault(ErrorCode::invalid_argument, "site ids must ascend: {} comes after {}",
              roster_.sites[i].id, roster_.sites[i - 1].id);
      site(roster_.sites[i]);
    }
    if (roster_.former.size() > kFormerSitesMax)
      fault(ErrorCode::too_large, "the roster lists {} former sites: at most {} may be listed",
            roster_.former.size(), kFormerSitesMax);
    never_given_ids();
    for (std::size_t i = 0; i < roster_.former.size(); ++i) {
      if (i > 0 && roster_.former[i].id <= roster_.former[i - 1].id)
        fault(ErrorCode::invalid_argument, "ids of former sites must ascend: {} comes after {}",
              roster_.former[i].id, roster_.former[i - 1].id);
      former(roster_.former[i]);
    }
    for (std::size_t i = 0; i < roster_.recoveries.size(); ++i) {
      recovery(roster_.recoveries[i]);
      if (i > 0 && roster_.recoveries[i].step <= roster_.recoveries[i - 1].step)
        fault(ErrorCode::invalid_argument,
              "the steps of recoveries ascend: one from an earlier step takes the place of those "
              "after it");
    }
    return std::move(faults_);
  }

 private:
  template <class... Values>
  void fault(ErrorCode code, fmt::format_string<Values...> format, Values&&... values) {
    faults_.emplace_back(code, fmt::format(format, std::forward<Values>(values)...));
  }

  void recovery(const Recovery& recovery) {
    if (recovery.voters.empty() ||
        !std::is_sorted(recovery.voters.begin(), recovery.voters.end(), std::less_equal<>()))
      fault(ErrorCode::invalid_argument, "the voters of a recovery are ascending site ids");
    for (const auto voter : recovery.voters)
      if (roster_.identity_of(voter) == nullptr)
        fault(ErrorCode::invalid_argument, "the recovery names voter {}, which is no site", voter);
    if (roster_.run && *roster_.run != recovery.run)
      fault(ErrorCode::invalid_argument, "the roster and its recovery name different runs");
  }

  void site(const RosterSite& site) {
    const auto& name = site.name;
    if (!names_.insert(name).second)
      fault(ErrorCode::invalid_argument, "two sites are named \"{}\"", name);
    named(site.id, name, site.identity);
    if (site.gateways.empty())
      fault(ErrorCode::invalid_argument, "site \"{}\" has no gateway", name);
    for (const auto& gateway : site.gateways) this->gateway(site, gateway);
  }

  void never_given_ids() {
    if (roster_.next_id == 0) return;  // written by hand, or by an older version
    const auto refuse = [this](const std::string& name, std::uint32_t id) {
      if (id >= roster_.next_id)
        fault(ErrorCode::invalid_argument,
              "site \"{}\" has the id {}, but next_id = {} says that it was never given: next_id "
              "must be above every id",
              name, id, roster_.next_id);
    };
    for (const auto& site : roster_.sites) refuse(site.name, site.id);
    for (const auto& site : roster_.former) refuse(site.name, site.id);
  }

  void former(const FormerSite& site) {
    if (roster_.find(site.id) != nullptr)
      fault(ErrorCode::invalid_argument,
            "site \"{}\" has the id {} of a former site: ids are never given to another site",
            roster_.find(site.id)->name, site.id);
    named(site.id, site.name, site.identity);
  }

  void named(std::uint32_t id, const std::string& name, const PublicKey& identity) {
    if (!is_site_name(name))
      fault(ErrorCode::invalid_argument,
            "site {} needs a name of 1 to 64 letters, digits, '.', '_' or '-'", id);
    if (crypto_core_ed25519_is_valid_point(octets(identity.bytes.data())) != 1)
      fault(ErrorCode::unauthenticated, "the identity of site \"{}\" is not an Ed25519 public key",
            name);
    if (!identities_.insert(identity).second)
      fault(ErrorCode::unauthenticated,
            "the identity of site \"{}\" is also that of another site: each site needs its own",
            name);
  }

  void gateway(const RosterSite& site, const RosterGateway& gateway) {
    if (!gateway.address.empty()) address(site, gateway.address);
    if (!curve_keys_.insert(gateway.curve_key).second)
      fault(ErrorCode::unauthenticated,
            "a CURVE key of site \"{}\" is also that of another gateway: each needs its own",
            site.name);
    if (!signs_curve_key(site.identity, gateway.curve_key, gateway.curve_signature))
      fault(ErrorCode::unauthenticated,
            "the identity of site \"{}\" does not sign its CURVE key {}: copy both from one "
            "public key file",
            site.name, gateway.curve_key.hex());
  }

  void address(const RosterSite& site, std::string_view text) {
    const auto address = read_address(text);
    if (!address)
      return fault(ErrorCode::invalid_argument,
                   "site \"{}\": a gateway's address is host:port with a port of 1 to 65534, not "
                   "\"{}\"",
                   site.name, text.substr(0, 80));
    if (const auto why = why_out_of_reach(address->host); !why.empty())
      return fault(ErrorCode::invalid_argument, "site \"{}\": the host of {} {}", site.name, text,
                   why);
    const bool control = ports_.emplace(address->host, address->port).second;
    const bool bulk = ports_.emplace(address->host, address->port + 1).second;
    if (!control || !bulk)
      fault(ErrorCode::invalid_argument,
            "two gateways take port {} of {}: each takes the port of its address, and the next for "
            "bulk data",
            control ? address->port + 1 : address->port, address->host);
  }

  const Roster& roster_;
  std::set<std::string> names_;
  std::set<std::pair<std::string, unsigned>> ports_;  // of each host
  std::set<PublicKey> identities_;
  std::set<CurveKey> curve_keys_;
  std::vector<Error> faults_;
};

class RosterVerifier final : public Verifier {
 public:
  explicit RosterVerifier(const Roster& roster) {
    for (const auto& site : roster.sites) identities_.emplace(site.id, site.identity);
    for (const auto& site : roster.former) identities_.emplace(site.id, site.identity);
  }

  bool verify(std::uint32_t site, std::string_view context, std::span<const std::byte> message,
              const Signature& signature) const override {
    const auto found = identities_.find(site);
    return found != identities_.end() &&
           verify_signature(found->second, context, message, signature);
  }

 private:
  std::map<std::uint32_t, PublicKey> identities_;
};

}  // namespace

const RosterSite* Roster::find(std::uint32_t id) const {
  const auto found = std::lower_bound(
      sites.begin(), sites.end(), id,
      [](const RosterSite& site, std::uint32_t wanted) { return site.id < wanted; });
  return found != sites.end() && found->id == id ? &*found : nullptr;
}

const RosterSite* Roster::find(std::string_view name) const {
  const auto found = std::find_if(sites.begin(), sites.end(),
                                  [&](const RosterSite& site) { return site.name == name; });
  return found != sites.end() ? &*found : nullptr;
}

const PublicKey* Roster::identity_of(std::uint32_t id) const {
  if (const auto* site = find(id)) return &site->identity;
  const auto found = std::find_if(former.begin(), former.end(),
                                  [id](const FormerSite& site) { return site.id == id; });
  return found != former.end() ? &found->identity : nullptr;
}

std::size_t Roster::voters() const {
  return static_cast<std::size_t>(
      std::count_if(sites.begin(), sites.end(), [](const RosterSite& site) { return site.voter; }));
}

bool signs_curve_key(const PublicKey& identity, const CurveKey& key, const Signature& signature) {
  return verify_signature(identity, context::curve_key, key.bytes, signature);
}

Digest Recovery::digest() const {
  ByteWriter bytes;
  bytes.string("isthmus recovery v1").raw(run.bytes).put(step).raw(root.bytes);
  for (const auto voter : voters) bytes.put(voter);
  return blake2b(bytes.view());
}

std::vector<Error> check_roster(const Roster& roster) { return Check(roster).run(); }

RosterValidity validity(const Roster& roster, Nanoseconds unix_time) {
  return unix_time < roster.expires ? RosterValidity::valid : RosterValidity::expired;
}

std::unique_ptr<Verifier> make_verifier(const Roster& roster) {
  return std::make_unique<RosterVerifier>(roster);
}

}  // namespace isthmus::security
