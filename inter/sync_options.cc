#include "inter/sync_options.h"

#include <fmt/format.h>

namespace isthmus::inter {

Fingerprint Fingerprint::of_run(const ModelLayout& layout, const SyncOptions& sync) {
  // Names and shapes apart, so that a refusal says which of them differs.
  ByteWriter names, shapes;
  for (const auto& tensor : layout.tensors()) {
    names.string(tensor.name).put(tensor.fragment);
    for (const auto size : tensor.shape.sizes()) shapes.put(size);
    shapes.put(std::int64_t{-1});
  }
  const auto rule = sync.outer.has_momentum()
                        ? fmt::format("nesterov {} {}", sync.outer.rate, sync.outer.momentum)
                        : std::string("average");
  return {{
      {"model tensors", fmt::format("{} ({})", layout.tensors().size(),
                                    security::blake2b(names.view()).hex().substr(0, 16))},
      {"model shapes", fmt::format("{} elements ({})", layout.elements(),
                                   security::blake2b(shapes.view()).hex().substr(0, 16))},
      {"sync.outer", rule},
      {"sync.codec", std::string(compress::to_string(sync.codec))},
      {"sync.chunk_elements", fmt::format("{}", sync.chunk_elements)},
  }};
}

Fingerprint Fingerprint::of(const ModelLayout& layout, const SyncOptions& sync) {
  auto print = of_run(layout, sync);
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::uint64_t>>{
           {"sync.inner_steps", sync.inner_steps},
           {"sync.outer_steps", sync.outer_steps},
           {"sync.min_sites", sync.min_sites},
           {"sync.absent_steps", sync.absent_steps},
           {"sync.max_lead", sync.max_lead}})
    print.fields.push_back({name, fmt::format("{}", value)});
  return print;
}

security::Digest Fingerprint::digest() const {
  ByteWriter bytes;
  encode(bytes);
  return security::blake2b(bytes.view());
}

std::string Fingerprint::difference(const Fingerprint& other) const {
  for (const auto& field : fields) {
    bool found = false;
    for (const auto& theirs : other.fields) {
      if (theirs.name != field.name) continue;
      found = true;
      if (theirs.value != field.value)
        return fmt::format("{}: {} here, {} there", field.name, field.value, theirs.value);
    }
    if (!found) return fmt::format("{}: {} here, unknown there", field.name, field.value);
  }
  if (other.fields.size() != fields.size()) return "fields that this version does not know";
  return "";
}

void Fingerprint::encode(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(fields.size()));
  for (const auto& field : fields) out.string(field.name).string(field.value);
}

Fingerprint Fingerprint::decode(ByteReader& in) {
  Fingerprint print;
  print.fields.resize(in.count(64, 8));
  for (auto& field : print.fields) {
    field.name = in.string(64);
    field.value = in.string(256);
  }
  return print;
}

}  // namespace isthmus::inter
