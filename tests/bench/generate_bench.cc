// generate_bench: tokens per second at which a model of random parameters continues texts: first a
// prompt is read, then token after token comes, always the likeliest one. No draws, no tokenizer.
//
//   generate_bench --model 13.8M --precision bf16 --batch 8
//
// Rounds until the time is up, of which the median counts. A rival is timed from the same point on:
// from the first token after the prompt to the last one, over all texts (docs/performance.md).
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/random.h"
#include "base/thread_pool.h"
#include "runtime/model.h"
#include "tests/bench/benched_model.h"
#include "tests/bench/command_line.h"
#include "tests/bench/median.h"
#include "tests/bench/report.h"
#include "tests/bench/seconds.h"

namespace isthmus::bench {
namespace {

using namespace runtime;  // what is measured here

struct Options : BenchedModel {
  std::int64_t batch = 1;
  std::int64_t prompt = 32;
  std::int64_t tokens = 128;
  double seconds = 10;
  bool json = false;
};

struct Round {
  double reading = 0;     // seconds of all prompts but their last tokens
  double continuing = 0;  // seconds of `tokens` more of each
};

std::int32_t likeliest(std::span<const float> scores) {
  return static_cast<std::int32_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

Round run_round(const Options& options, const Model& model, Decoding& decoding,
                const std::vector<std::int32_t>& prompt) {
  Round round;
  const auto texts = decoding.texts();
  const auto vocabulary = static_cast<std::size_t>(model.config().vocabulary);
  const double start = wall_seconds();
  for (std::size_t text = 0; text < texts; ++text) {
    decoding.forget(text);
    decoding.read(text, std::span(prompt).first(prompt.size() - 1));
  }
  const double read = wall_seconds();
  std::vector<std::int32_t> last(texts, prompt.back());
  for (std::int64_t i = 0; i < options.tokens; ++i) {
    const auto scores = decoding.next(last);
    for (std::size_t text = 0; text < texts; ++text)
      last[text] = likeliest(scores.subspan(text * vocabulary, vocabulary));
  }
  round.reading = read - start;
  round.continuing = wall_seconds() - read;
  return round;
}

int run(const Options& options) {
  ThreadPool pool(options.cpus());
  const auto length = options.prompt + options.tokens;
  const auto model = options.create(1, length, pool);
  if (!model) return 1;
  const auto decoding = model->decoding(options.batch, length);
  if (!decoding) {
    fmt::print(stderr, "{}\n", decoding.error().text());
    return 1;
  }
  Random random(1);
  std::vector<std::int32_t> prompt;
  for (std::int64_t i = 0; i < options.prompt; ++i)
    prompt.push_back(static_cast<std::int32_t>(
        random.below(static_cast<std::uint64_t>(model->config().vocabulary))));
  run_round(options, *model, **decoding, prompt);  // warm
  std::vector<double> reading, continuing;
  const double end = wall_seconds() + options.seconds;
  do {
    const auto round = run_round(options, *model, **decoding, prompt);
    reading.push_back(round.reading);
    continuing.push_back(round.continuing);
  } while (wall_seconds() < end);
  const Report report(options.json);
  const auto row = [&](std::string_view name, std::int64_t tokens, double seconds) {
    report.row(
        fmt::format("generate_bench {} {}, {} threads, batch {}, prompt {}: {}", options.model,
                    options.precision, options.threads, options.batch, options.prompt, name),
        static_cast<double>(options.batch * tokens) / seconds, "tokens/s");
  };
  if (options.prompt > 1) row("reads", options.prompt - 1, median(reading));
  row("continues", options.tokens, median(continuing));
  return 0;
}

}  // namespace
}  // namespace isthmus::bench

int main(int argc, char** argv) {
  isthmus::bench::Options options;
  isthmus::bench::CommandLine line("Tokens per second at which texts are continued.", options.json);
  options.ask(line);
  line.number("--batch", options.batch, 1, 1 << 20, "texts side by side");
  line.number("--prompt", options.prompt, 1, 1 << 20, "tokens of each prompt");
  line.number("--tokens", options.tokens, 1, 1 << 20, "tokens of each continuation");
  line.number("--seconds", options.seconds, 0, 86'400, "how long to measure");
  line.parse(argc, argv);
  return isthmus::bench::after_output(isthmus::bench::run(options));
}
