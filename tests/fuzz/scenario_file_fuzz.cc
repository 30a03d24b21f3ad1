// Fuzz target: the TOML file of a simulated federation.
#include "base/assert.h"
#include "launcher/scenario_file.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto text = isthmus::text_of(isthmus::fuzz_input(data, size));
  const auto scenario = isthmus::launcher::parse_scenario("scenario.toml", std::string(text));
  if (!scenario) {
    ISTHMUS_ASSERT(scenario.error().code == isthmus::ErrorCode::invalid_argument);
    ISTHMUS_ASSERT(!scenario.error().text().empty());
    return 0;
  }
  ISTHMUS_ASSERT(scenario->sites > 0 && scenario->voters > 0);
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  for (const std::string_view text :
       {"from = \"storm\"\nsites = 7\nloss = 0.05\ncompute = \"2 s\"\n",
        "sites = 3\nvoters = 3\nouter_steps = 4\nmin_sites = 2\nouter = \"nesterov\"\n"
        "outer_rate = 0.7\nouter_momentum = 0.9\ncodec = \"bf16\"\nbug = \"skip_gap\"\n",
        "partitions = 0.5\none_way = 1\ncrashes = 3\noutages = 0.1\noutage_sites = 0\n"
        "rate = \"20 Mbit/s\"\n"}) {
    const auto bytes = bytes_of(text);
    seeds.emplace_back(bytes.begin(), bytes.end());
  }
  return seeds;
}

}  // namespace isthmus
