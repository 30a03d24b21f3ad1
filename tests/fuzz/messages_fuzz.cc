// Fuzz target: the decoders of single messages and frames, of records, votes and layouts. The first
// byte chooses one (the order of sample_messages()), the rest is what it decodes.
#include <algorithm>

#include "base/assert.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/inter/sample_messages.h"

namespace {

const std::vector<isthmus::inter::SampleMessage>& samples() {
  static const auto all = isthmus::inter::sample_messages();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto bytes = isthmus::fuzz_input(data, size).subspan(1);
  const auto& sample = samples()[data[0] % samples().size()];
  const auto again = sample.again(bytes);
  if (!again) return 0;
  if (sample.normalises)
    ISTHMUS_ASSERT(sample.again(*again) == again);
  else  // one thing has one encoding
    ISTHMUS_ASSERT(std::equal(again->begin(), again->end(), bytes.begin(), bytes.end()));
  return 0;
}

namespace isthmus {

std::vector<Bytes> fuzz_seeds() {
  std::vector<Bytes> seeds;
  for (std::size_t i = 0; i < samples().size(); ++i)
    seeds.push_back(ByteWriter().put(static_cast<std::uint8_t>(i)).raw(samples()[i].bytes).take());
  return seeds;
}

}  // namespace isthmus
