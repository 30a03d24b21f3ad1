// All sections and keys of a site file, in the order of the document.
#include "launcher/site_keys.h"

#include <array>
#include <span>
#include <vector>

namespace isthmus::launcher {
namespace {

constexpr std::array kSections = {
    SiteSection{"site", "This site."},
    SiteSection{"model", "The model that all sites train."},
    SiteSection{"experts",
                "How the routers of a mixture of experts are trained. Evaluation and text "
                "generation drop nothing."},
    SiteSection{"lora",
                "Low-rank adapters (LoRA) beside the products of a model that itself is frozen: "
                "only they train, are exchanged, and lie in checkpoints, as PEFT has them."},
    SiteSection{"data", "This site's own text. It never leaves the site."},
    SiteSection{"masking",
                "How tokens are hidden from a model that predicts hidden ones instead of the "
                "next: of those that are chosen 80 % are replaced by the mask token and 10 % by "
                "any token, and the others stay (BERT)."},
    SiteSection{"train", "Inner steps: how this site trains between two outer steps."},
    SiteSection{"mesh", "The ranks of this site, as a grid of data x pipeline x tensor x expert."},
    SiteSection{"sync",
                "Outer steps: how sites come together. Keys marked shared must be equal at all of "
                "them."},
    SiteSection{"gateway", "The process that speaks with the other sites."},
};

// [site]
std::vector<SiteKey> keys_of_site() {
  using enum ValueKind;
  constexpr auto site = &SiteFile::site;

  return {
      {.section = "site",
       .name = "name",
       .kind = name,
       .field = field(site, &SiteOptions::name),
       .meaning = "What this site is called, as the roster lists it. `isthmus init`, which names "
                  "files after "
                  "it, takes one that begins with neither '.' nor '-'.",
       .required = true,
       .example = "\"alpha\""},
      {.section = "site",
       .name = "run_dir",
       .kind = path,
       .field = field(site, &SiteOptions::run_dir),
       .meaning =
           "Folder of this run: checkpoints, outer state, event log, sockets. Made when it is "
           "not there; a run continues from what it holds.",
       .required = true,
       .example = "\"run\""},
      {.section = "site",
       .name = "roster",
       .kind = path,
       .field = field(site, &SiteOptions::roster),
       .meaning = "Who the sites are, signed by the operator (`isthmus roster`).",
       .absent = "the site trains alone, without a gateway",
       .example = "\"roster.toml\""},
      {.section = "site",
       .name = "operator_key",
       .kind = key,
       .field = field(site, &SiteOptions::operator_key),
       .meaning = "The operator's public key, which must have signed the roster: 64 hexadecimal "
                  "digits, or the file that holds them (`operator.key.pub`).",
       .absent = "only without a roster",
       .example = "\"operator.key.pub\""},
      {.section = "site",
       .name = "identity",
       .kind = path,
       .field = field(site, &SiteOptions::identity),
       .meaning = "This site's secret keys (`isthmus keys generate`); readable by its owner only.",
       .absent = "only without a roster",
       .example = "\"alpha.key\""},
  };
}

std::vector<SiteKey> all_keys() {
  std::vector<SiteKey> keys;
  for (const auto& part : {keys_of_site(), model_keys(), expert_keys(), lora_keys(),
                           training_keys(), sync_keys(), gateway_keys()})
    keys.insert(keys.end(), part.begin(), part.end());
  return keys;
}

}  // namespace

std::span<const SiteSection> site_sections() { return kSections; }

std::span<const SiteKey> site_keys() {
  static const std::vector<SiteKey> keys = all_keys();
  return keys;
}

}  // namespace isthmus::launcher
