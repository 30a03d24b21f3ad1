// Fuzz target: what an operator hands to sites. The first byte chooses: the text of a roster, of
// the file of its signature, of the public part of a key, or a date.
#include "base/assert.h"
#include "launcher/roster_file.h"
#include "security/roster_signature.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus::launcher {
namespace {

// Of somebody who threw the secrets away.
constexpr std::string_view kAlpha =
    "identity = \"4dd70d342e342ece84d95c3e4a19c58860b71d201d0ea271e8dd65ef85b634f4\"\n"
    "curve_key = \"aa43b0ba88894e2a307721314569290498affddee03928cceea54e7a2f34b612\"\n"
    "curve_signature = "
    "\"d38caf7e0489c5cca70334741d642df126f7c2913328029716da3c748b9a89ac0dcee2d5378"
    "950dcf5218ef73737e03d63832ffbed829b6abe78b49b49b8cd01\"\n";
constexpr std::string_view kBeta =
    "identity = \"77ca7e0c5d851f035b0d27fa0b41477fa2e9dd9854bc0bbc88de16c7136cfcd3\"\n"
    "curve_key = \"e0de74dda031113b4acaa4c13b0e18086565fdfd23fe3be43307c0ddba778442\"\n"
    "curve_signature = "
    "\"42b2eb0b2586963244faa649ab3c38d23dbd2c2b63a0b4d842af57758b5e73e51e615471d23"
    "99786246df61df0c7d2739351739aa3c90f2042d1d4c130e46606\"\n";

enum Choice : std::uint8_t { roster, signature, public_key, date, kChoices };

const security::SigningKey& operator_key() {
  static const auto key = security::SigningKey::from_seed(Bytes(32, std::byte{7}));
  return key;
}
constexpr std::string_view kSignedText = "epoch = 1\n";

// What has no faults is written again as something that has none either, and says the same.
void check_roster(const std::string& source) {
  const auto text = parse_roster_text("roster.toml", source);
  ISTHMUS_ASSERT(text.faults.empty() == text.faults.text(text.path, text.source).empty());
  if (!text.faults.empty()) return;
  const auto written = roster_text(text.roster);
  const auto again = parse_roster_text("roster.toml", written);
  ISTHMUS_ASSERT(again.faults.empty() && roster_text(again.roster) == written);
  ISTHMUS_ASSERT(security::make_verifier(text.roster) != nullptr);
}

void check_public_key(std::string_view text) {
  const auto key = security::parse_public_identity(text);
  if (!key) {
    ISTHMUS_ASSERT(!key.error().text().empty());
    return;
  }
  const auto again = security::parse_public_identity(security::to_text(*key));
  ISTHMUS_ASSERT(again && *again == *key);
}

}  // namespace
}  // namespace isthmus::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  using namespace isthmus::launcher;
  if (size == 0) return 0;
  const auto text = text_of(fuzz_input(data, size).subspan(1));
  switch (data[0] % kChoices) {
    case roster:
      check_roster(std::string(text));
      break;
    case signature:
      (void)security::verify_roster(bytes_of(kSignedText), text, operator_key().public_key());
      break;
    case public_key:
      check_public_key(text);
      break;
    case date:
      if (const auto time = parse_calendar(text))
        ISTHMUS_ASSERT(parse_calendar(calendar_text(*time)) == *time);
  }
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  using namespace launcher;
  std::vector<Bytes> seeds;
  const auto add = [&seeds](Choice choice, std::string_view text) {
    seeds.push_back(ByteWriter().put(choice).raw(bytes_of(text)).take());
  };
  security::Roster roster_of_two;
  roster_of_two.epoch = 3;
  roster_of_two.expires = 1'800'000'000 * kSecond;
  roster_of_two.next_id = 9;
  std::uint32_t id = 1;
  for (const auto text : {kAlpha, kBeta}) {
    const auto key = *security::parse_public_identity(text);
    roster_of_two.sites.push_back({.id = id,
                                   .name = "site" + std::to_string(id),
                                   .voter = true,
                                   .identity = key.identity,
                                   .gateways = {{.address = id == 1 ? "alpha.example:7700" : "",
                                                 .curve_key = key.curve_key,
                                                 .curve_signature = key.curve_signature}}});
    id += 4;
  }
  add(roster, roster_text(roster_of_two));
  roster_of_two.former = {{.id = 2, .name = "gone", .identity = operator_key().public_key()}};
  roster_of_two.run = security::blake2b({});
  roster_of_two.recoveries = {
      {.run = *roster_of_two.run, .step = 41, .root = {}, .voters = {1, 5}}};
  add(roster, roster_text(roster_of_two));
  add(roster, "epoch = 1\nexpires = 2027-06-30\n[[site]]\nid = one\nname = \"a\"\n");
  add(signature, *security::sign_roster(bytes_of(kSignedText), operator_key()));
  add(public_key, kAlpha);
  add(public_key, "# a comment\n\n" + std::string(kBeta));
  add(date, "2027-06-30T12:00:00Z");
  add(date, "2028-02-29");
  return seeds;
}

}  // namespace isthmus
