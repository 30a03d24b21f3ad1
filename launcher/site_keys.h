// The parts of the table of keys (launcher/site_schema.h), which site_keys.cc puts together, and
// what they are written with.
#pragma once

#include <cstddef>
#include <vector>

#include "launcher/site_schema.h"

namespace isthmus::launcher {

std::vector<SiteKey> model_keys();     // [model]
std::vector<SiteKey> expert_keys();    // [experts]
std::vector<SiteKey> lora_keys();      // [lora]
std::vector<SiteKey> training_keys();  // [data], [masking], [train], [mesh]
std::vector<SiteKey> sync_keys();      // [sync]
std::vector<SiteKey> gateway_keys();   // [gateway]

// The field `part.member` of a SiteFile.
template <class Part, class Member>
FieldOf<Member> field(Part SiteFile::*part, Member Part::*member) {
  return [part, member](SiteFile& file) -> Member& { return (file.*part).*member; };
}
template <class Part, class Inner, class Member>
FieldOf<Member> field(Part SiteFile::*part, Inner Part::*inner, Member Inner::*member) {
  return [part, inner, member](SiteFile& file) -> Member& { return ((file.*part).*inner).*member; };
}
template <class Part, class Choice>
ChoiceField choice_field(Part SiteFile::*part, Choice Part::*member) {
  return {
      .get = [part, member](
                 const SiteFile& file) { return static_cast<std::size_t>((file.*part).*member); },
      .set = [part, member](SiteFile& file,
                            std::size_t index) { (file.*part).*member = Choice(index); }};
}

template <class Part, class Inner, class Choice>
ChoiceField choice_field(Part SiteFile::*part, Inner Part::*inner, Choice Inner::*member) {
  return {.get =
              [part, inner, member](const SiteFile& file) {
                return static_cast<std::size_t>(((file.*part).*inner).*member);
              },
          .set = [part, inner, member](
                     SiteFile& file,
                     std::size_t index) { ((file.*part).*inner).*member = Choice(index); }};
}

inline constexpr double kSeedMax = 9007199254740991;  // exact in every reader of numbers

}  // namespace isthmus::launcher
