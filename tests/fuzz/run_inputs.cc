// Drives a fuzz target without libFuzzer, as kUsage says.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "base/random.h"
#include "tests/fuzz/fuzz_target.h"

namespace {

using isthmus::Bytes;
using isthmus::Random;

constexpr const char* kUsage =
    "Runs one decoder of outside bytes on inputs. Where it finds a fault (an abort, a bad address, "
    "what\n"
    "a sanitizer reports, more than 4 GiB of memory, an input that takes too long) it ends, and "
    "leaves\n"
    "the input behind as `finding` in the current folder.\n"
    "\n"
    "  PATH...                       these inputs; of a folder, all files in it\n"
    "  --write FOLDER                writes the target's own seeds\n"
    "  --runs N [--seed S] PATH...   inputs and seeds, then N made from them at random; S is 1\n"
    "  --limit T                     seconds of CPU time that an input may take; 20\n"
    "\n"
    "With the environment's ISTHMUS_FUZZ_SECONDS it makes inputs for so long, in place of N, and\n"
    "without --runs too; then S is new each time, and said. What it cannot understand ends it "
    "with\n"
    "exit code 2.\n";

constexpr rlim_t kMemoryMax = rlim_t{4} << 30;

// The input that is being run; whoever ends it finds it as `finding` in the current folder.
const Bytes* running = nullptr;
itimerval limit_each{.it_interval = {}, .it_value = {.tv_sec = 20, .tv_usec = 0}};

void keep_finding() {
  if (running == nullptr) return;
  if (const int file = ::open("finding", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
      file >= 0) {
    (void)!::write(file, running->data(), running->size());
    ::close(file);
  }
}

void end_with_finding(int signal) {
  keep_finding();
  if (signal == SIGPROF) (void)!::write(STDERR_FILENO, "the input takes too long\n", 25);
  std::signal(signal == SIGPROF ? SIGABRT : signal, SIG_DFL);
  std::raise(signal == SIGPROF ? SIGABRT : signal);
}

void run(const Bytes& input) {
  running = &input;
  ::setitimer(ITIMER_PROF, &limit_each, nullptr);
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
        if (other.empty()) break;
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

Bytes contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    std::fprintf(stderr, "%s: cannot be read\n", path.c_str());
    std::exit(2);
  }
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto bytes = isthmus::bytes_of(text);
  return {bytes.begin(), bytes.end()};
}

// In the order of their names.
std::set<std::string> files_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::set<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(path))
    files.insert(entry.path().string());
  return files;
}

// Digits alone: strtoull would take -3 for a number, and "abc" for 0.
std::uint64_t number_of(const char* name, const char* text, std::uint64_t least,
                        std::uint64_t most = UINT64_MAX) {
  std::uint64_t number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end || number < least || number > most) {
    std::fprintf(stderr, "%s is '%s': give it a whole number from %llu to %llu\n", name, text,
                 static_cast<unsigned long long>(least), static_cast<unsigned long long>(most));
    std::exit(2);
  }
  return number;
}

void write_seeds(const std::string& folder) {
  int number = 0;
  for (const auto& input : isthmus::fuzz_seeds()) {
    const auto path = folder + "/seed-" + std::to_string(number++);
    std::ofstream out(path, std::ios::binary);
    if (!(out << isthmus::text_of(input) << std::flush)) {
      std::fprintf(stderr, "%s: cannot be written\n", path.c_str());
      std::exit(2);
    }
  }
}

// Of inputs that nobody has seen yet.
std::uint64_t new_seed() {
  return static_cast<std::uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
}

}  // namespace

// Where there is a sanitizer it says what is wrong, of bad addresses too, and ends the process
// itself; and it reserves terabytes of addresses.
extern "C" [[gnu::weak]] void __sanitizer_set_death_callback(void (*)());

namespace {

void keep_findings() {
  std::signal(SIGPROF, end_with_finding);
  std::signal(SIGABRT, end_with_finding);
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(keep_finding);
    return;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, end_with_finding);
  const rlimit memory{kMemoryMax, kMemoryMax};
  ::setrlimit(RLIMIT_AS, &memory);
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t runs = 0;
  std::optional<std::uint64_t> wanted_seed;
  const char* const wanted = std::getenv("ISTHMUS_FUZZ_SECONDS");
  const std::chrono::seconds time(wanted ? number_of("ISTHMUS_FUZZ_SECONDS", wanted, 1, 1 << 30)
                                         : 0);
  bool makes = wanted != nullptr;
  std::vector<Bytes> corpus;
  keep_findings();
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool takes_value = argument == "--runs" || argument == "--seed" ||
                             argument == "--limit" || argument == "--write";
    if (takes_value && ++i == argc) {
      std::fprintf(stderr, "%s wants a value; --help says which\n", argument.c_str());
      return 2;
    }
    if (argument == "--runs") {
      runs = number_of("--runs", argv[i], 1);
      makes = true;
    } else if (argument == "--seed") {
      wanted_seed = number_of("--seed", argv[i], 0);
    } else if (argument == "--limit") {
      limit_each.it_value.tv_sec = static_cast<time_t>(number_of("--limit", argv[i], 1, 3600));
    } else if (argument == "--write") {
      write_seeds(argv[i]);
      return 0;
    } else if (argument.starts_with("-")) {
      const bool asked = argument == "--help" || argument == "-h";
      std::fputs(kUsage, asked ? stdout : stderr);
      return asked ? 0 : 2;
    } else {
      for (const auto& file : files_of(argument)) corpus.push_back(contents(file));
    }
  }
  if (makes)
    for (auto& input : isthmus::fuzz_seeds()) corpus.push_back(std::move(input));
  const auto seed = wanted_seed.value_or(wanted ? new_seed() : 1);
  // Said before, as a fault ends this.
  if (makes) std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  for (const auto& input : corpus) run(input);
  const auto end = std::chrono::steady_clock::now() + time;
  const auto more = [&](std::uint64_t made) {
    return makes && (wanted ? std::chrono::steady_clock::now() < end : made < runs);
  };
  std::uint64_t made = 0;
  for (; more(made); ++made) {
    Random random = Random(seed).split(made);
    run(changed(corpus[random.below(corpus.size())], corpus, random));
  }
  std::printf("%zu inputs, and %llu made from them\n", corpus.size(),
              static_cast<unsigned long long>(made));
}
