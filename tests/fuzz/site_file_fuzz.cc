// Fuzz target: a site's TOML file, with what the command line sets instead in the lines before a
// zero byte.
#include "base/assert.h"
#include "launcher/site_file.h"
#include "launcher/site_schema.h"
#include "launcher/units.h"
#include "tests/fuzz/fuzz_target.h"

namespace isthmus::launcher {
namespace {

constexpr std::string_view kSite = R"([site]
name = "alpha"
run_dir = "run"
roster = "roster.toml"
operator_key = "8886bffa158f8f4aa923a73db7659f8b7658050270fedbc5551f8831d43dfa18"
[model]
layers = 6
hidden = 256
heads = 8
ffn = 704
[data]
train = [{ path = "en.bin" }, { path = "/abs/de.bin", weight = 2 }]
held_out = [{ name = "en", path = "en.held.bin" }]
[train]
learning_rate = 2e-3
cpus = "0-1,4"
[sync]
inner_steps = 10
outer_steps = 24
straggler_wait = "1 min 30 s"
[gateway]
listen = "[::1]:7700"
rate_limit = "20.5 Mbit/s"
memory = "1 GiB"
)";

}  // namespace
}  // namespace isthmus::launcher

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus::launcher;
  std::string_view text = isthmus::text_of(isthmus::fuzz_input(data, size));
  std::vector<std::string> overrides;
  if (const auto zero = text.find('\0'); zero != text.npos) {
    for (auto lines = text.substr(0, zero); !lines.empty();) {
      overrides.emplace_back(lines.substr(0, lines.find('\n')));
      lines.remove_prefix(std::min(lines.size(), overrides.back().size() + 1));
    }
    text.remove_prefix(zero + 1);
  }
  const auto read = parse_site_text("folder/site.toml", std::string(text), overrides);
  ISTHMUS_ASSERT(read.faults.empty() == read.fault_text().empty());
  ISTHMUS_ASSERT(read.is_toml || !read.faults.empty());
  if (!read.faults.empty()) return 0;
  // What it says is in range, and can be said again.
  ISTHMUS_ASSERT(read.file.inner_steps_total() > 0 && read.file.tokens_per_inner_step() > 0);
  for (const auto& key : site_keys()) {
    ISTHMUS_ASSERT(!key.allowed().empty());
    (void)key.value_text(read.file);
  }
  const auto& gateway = read.file.gateway;
  ISTHMUS_ASSERT(parse_bytes(exact_bytes(gateway.memory)) == gateway.memory);
  ISTHMUS_ASSERT(parse_rate(exact_rate(gateway.rate_limit)) == gateway.rate_limit);
  const auto wait = read.file.sync.straggler_wait;
  ISTHMUS_ASSERT(wait < 0 || parse_duration(exact_duration(wait)) == wait);
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  const auto add = [&seeds](std::string_view overrides, std::string_view text) {
    ByteWriter seed;
    if (!overrides.empty()) seed.raw(bytes_of(overrides)).put('\0');
    seeds.push_back(seed.raw(bytes_of(text)).take());
  };
  add("", launcher::kSite);
  add("sync.inner_steps=3\ntrain.cpus=\"0-3\"\nsite.name=beta\n", launcher::kSite);
  add("", "[site]\nname = alpha\nrun_dir = run # no quotes\n[sync]\ninner_steps = 1_0\n");
  add("",
      "[model]\nlayer = 6\n[trian]\nthreads = 0x10\n[site.gateway]\na.b.\"c d\" = 1979-05-27\n");
  return seeds;
}

}  // namespace isthmus
