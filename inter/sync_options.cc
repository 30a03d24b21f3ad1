#include "inter/sync_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace isthmus::inter {
namespace {

constexpr std::size_t kFieldsMax = 64, kNameBytesMax = 64, kValueBytesMax = 256;
constexpr std::size_t kShapesNamedMax = 40;  // the digests speak for the others

// "model.layers.11.mlp.up_proj.weight": all layers have one.
std::string without_numbers(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (c < '0' || c > '9')
      out += c;
    else if (out.empty() || out.back() != '*')
      out += '*';
  }
  return out;
}

// So that a refusal says in which tensor two models differ, not just that they do.
std::vector<Fingerprint::Field> shapes_named(const ModelLayout& layout) {
  struct Like {
    std::string shape;  // of the first
    std::size_t count = 0;
  };
  std::map<std::string, Like> by_name;
  for (const auto& tensor : layout.tensors()) {
    auto& like = by_name["shape of " + without_numbers(tensor.name)];
    if (like.count++ == 0) like.shape = fmt::format("{}", fmt::join(tensor.shape.sizes(), " x "));
  }
  std::vector<Fingerprint::Field> fields;
  for (const auto& [name, like] : by_name)
    if (fields.size() < kShapesNamedMax && name.size() <= kNameBytesMax)
      fields.push_back({name, like.count == 1
                                  ? like.shape
                                  : fmt::format("{} ({} times)", like.shape, like.count)});
  return fields;
}

std::vector<std::string_view> items_of(std::string_view text) {
  constexpr std::string_view kBetween = ", ";
  std::vector<std::string_view> items;
  for (auto end = text.find(kBetween); end != text.npos; end = text.find(kBetween)) {
    items.push_back(text.substr(0, end));
    text.remove_prefix(end + kBetween.size());
  }
  items.push_back(text);
  return items;
}

// Of two lists in one order, like "heads 8/4, rope_theta 10000"; else both as they are.
std::pair<std::string, std::string> items_that_differ(std::string_view a, std::string_view b) {
  auto of_a = items_of(a), of_b = items_of(b);
  if (of_a.size() != of_b.size()) return {std::string(a), std::string(b)};
  std::vector<std::string_view> only_a, only_b;
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (of_a[i] == of_b[i]) continue;
    only_a.push_back(of_a[i]);
    only_b.push_back(of_b[i]);
  }
  return {fmt::format("{}", fmt::join(only_a, ", ")), fmt::format("{}", fmt::join(only_b, ", "))};
}

}  // namespace

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
      {"model settings", layout.settings()},
      {"sync.outer", rule},
      {"sync.codec", std::string(compress::to_string(sync.codec))},
      {"sync.chunk_elements", fmt::format("{}", sync.chunk_elements)},
  }};
}

Fingerprint Fingerprint::of(const ModelLayout& layout, const SyncOptions& sync) {
  Fingerprint print{shapes_named(layout)};
  for (auto& field : of_run(layout, sync).fields) print.fields.push_back(std::move(field));
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

std::string Fingerprint::difference(const Fingerprint& other, std::string_view where,
                                    std::string_view where_other) const {
  for (const auto& field : fields) {
    bool found = false;
    for (const auto& theirs : other.fields) {
      if (theirs.name != field.name) continue;
      found = true;
      if (theirs.value != field.value) {
        const auto [own, others] = items_that_differ(field.value, theirs.value);
        return fmt::format("{}: {} {}, {} {}", field.name, own, where, others, where_other);
      }
    }
    if (!found)
      return fmt::format("{}: {} {}, none {}", field.name, field.value, where, where_other);
  }
  for (const auto& theirs : other.fields)
    if (std::ranges::none_of(fields, [&](const auto& own) { return own.name == theirs.name; }))
      return fmt::format("{}: none {}, {} {}", theirs.name, where, theirs.value, where_other);
  return other.fields.size() == fields.size() ? "" : "a field comes twice";
}

void Fingerprint::encode(ByteWriter& out) const {
  out.put(static_cast<std::uint32_t>(fields.size()));
  for (const auto& field : fields) out.string(field.name).string(field.value);
}

Fingerprint Fingerprint::decode(ByteReader& in) {
  Fingerprint print;
  print.fields.resize(in.count(kFieldsMax, 8));
  for (auto& field : print.fields) {
    field.name = in.string(kNameBytesMax);
    field.value = in.string(kValueBytesMax);
  }
  return print;
}

}  // namespace isthmus::inter
