// Drives a fuzz target without libFuzzer:
//
//     peer_bytes_fuzz FILE…               these inputs, as libFuzzer leaves them behind
//     peer_bytes_fuzz --write FOLDER      writes the inputs to begin with
//     peer_bytes_fuzz --runs N [--seed S] those inputs, then N made from them at random
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using isthmus::Bytes;
using isthmus::Random;

void run(const Bytes& input) {
  // Exactly as large as it says, so that a sanitizer sees each byte beyond it.
  const std::vector<std::uint8_t> exact(
      reinterpret_cast<const std::uint8_t*>(input.data()),
      reinterpret_cast<const std::uint8_t*>(input.data()) + input.size());
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

Bytes changed(Bytes input, const std::vector<Bytes>& corpus, Random& random) {
  for (auto changes = 1 + random.below(8); changes > 0 && !input.empty(); --changes) {
    const auto at = random.below(input.size());
    const auto where = input.begin() + static_cast<std::ptrdiff_t>(at);
    switch (random.below(6)) {
      case 0:
        input.erase(where, where + static_cast<std::ptrdiff_t>(
                                       1 + random.below(std::min<std::size_t>(
                                               8, static_cast<std::size_t>(input.end() - where)))));
        break;
      case 1:
        input.insert(where, 1 + random.below(8), static_cast<std::byte>(random.below(256)));
        break;
      case 2: {
        const auto& other = corpus[random.below(corpus.size())];
        const auto from = random.below(other.size());
        input.insert(where, other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      case 3:
        *where = random.chance(0.5) ? std::byte{0xFF} : std::byte{0};
        break;
      default:
        *where ^= static_cast<std::byte>(1 << random.below(8));
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0, seed = 1;
  const auto corpus = isthmus::fuzz_corpus();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--runs" || argument == "--seed") {
      (argument == "--runs" ? runs : seed) = std::strtoull(value.c_str(), nullptr, 10);
      ++i;
    } else if (argument == "--write") {
      for (std::size_t n = 0; n < corpus.size(); ++n) {
        std::ofstream out(value + "/" + std::to_string(n), std::ios::binary);
        out << isthmus::text_of(corpus[n]);
      }
      ++i;
    } else {
      std::ifstream in(argument, std::ios::binary);
      if (!in) {
        std::fprintf(stderr, "%s: no such file\n", argument.c_str());
        return 2;
      }
      const std::string text((std::istreambuf_iterator<char>(in)), {});
      const auto bytes = isthmus::bytes_of(text);
      run(Bytes(bytes.begin(), bytes.end()));
    }
  }
  if (runs == 0) return 0;
  for (const auto& input : corpus) run(input);
  for (std::uint64_t i = 0; i < runs; ++i) {
    Random random = Random(seed).split(i);
    run(changed(corpus[random.below(corpus.size())], corpus, random));
  }
  std::printf("%llu inputs from seed %llu\n", static_cast<unsigned long long>(runs),
              static_cast<unsigned long long>(seed));
}
