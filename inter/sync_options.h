// SyncOptions: the rules of the outer step. They must be equal at all sites, and are part of the
// fingerprint; how one site waits or sends is its own business (GatewayOptions).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/byte_stream.h"
#include "base/clock.h"
#include "compress/codec.h"
#include "inter/model_layout.h"

namespace isthmus::inter {

enum class OuterRuleKind : std::uint8_t { average = 0, nesterov = 1 };

// What a step does with the weighted mean Δ of the pseudo-gradients (DiLoCo, arXiv 2311.08105,
// section 2): average: x ← x − Δ; nesterov: m ← μ·m + Δ, x ← x − η·(Δ + μ·m).
struct OuterRule {
  OuterRuleKind kind = OuterRuleKind::average;
  float rate = 0.7f;      // η, of nesterov
  float momentum = 0.9f;  // μ, of nesterov
  bool operator==(const OuterRule&) const = default;

  bool has_momentum() const { return kind == OuterRuleKind::nesterov; }
};

struct SyncOptions {
  std::uint64_t inner_steps = 100;  // of every rank between two contributions
  std::uint64_t outer_steps = 100;  // the run ends with this one
  OuterRule outer;
  compress::CodecId codec = compress::CodecId::int8;
  // At most, of a chunk: the unit of acknowledgement and resume.
  std::uint64_t chunk_elements = 1 << 18;
  std::uint32_t min_sites = 1;     // parts that make a step worth committing; no quorum
  std::uint32_t absent_steps = 3;  // records without a member before it is dropped from the view
  // × inner_steps: how far past its base a site trains alone before it waits.
  std::uint32_t max_lead = 1;
};

// What must be equal, as named values, so that a refusal can name the one that differs.
struct Fingerprint {
  struct Field {
    std::string name;
    std::string value;
    bool operator==(const Field&) const = default;
  };
  std::vector<Field> fields;

  // Compared at the start of each session.
  static Fingerprint of(const ModelLayout& layout, const SyncOptions& sync);
  // Those that stay for a whole run; record 0 has its digest. The others may change with a restart
  // of all sites.
  static Fingerprint of_run(const ModelLayout& layout, const SyncOptions& sync);
  security::Digest digest() const;
  // The first name whose values differ, with both, and where each is ("" when equal).
  std::string difference(const Fingerprint& other, std::string_view where = "here",
                         std::string_view where_other = "there") const;
  void encode(ByteWriter& out) const;
  static Fingerprint decode(ByteReader& in);  // bounded; failure is the reader's
};

}  // namespace isthmus::inter
