#include "runtime/metrics_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace isthmus::runtime {
namespace {

constexpr std::size_t kTailBytes = 1 << 16;  // a line is far shorter

}  // namespace

Result<std::unique_ptr<MetricsLog>> MetricsLog::open(const Clock& clock, const std::string& path) {
  ISTHMUS_TRY(auto file, LineFile::open(path));
  std::unique_ptr<MetricsLog> log(new MetricsLog(clock, std::move(file)));
  log->read_last();
  return log;
}

void MetricsLog::read_last() {
  auto tail = file_.tail(kTailBytes);
  std::optional<Last> last;
  bool before_known = false;
  std::uint64_t before = 0;
  for (bool whole_life = false; !tail.empty() && !whole_life;) {
    const auto newline = tail.rfind('\n');
    const auto start = newline == std::string::npos ? 0 : newline + 1;
    const auto line = nlohmann::json::parse(tail.begin() + static_cast<std::ptrdiff_t>(start),
                                            tail.end(), nullptr, /*allow_exceptions=*/false);
    tail.resize(newline == std::string::npos ? 0 : newline);
    const auto whole = [&](const char* key) {
      return line.contains(key) && line[key].is_number_unsigned();
    };
    if (!line.is_object() || !whole("inner_step") || !whole("tokens") ||
        !whole("tokens_contributed"))
      continue;
    if (!last)
      last = {line["inner_step"].get<std::int64_t>(), line["tokens"].get<std::uint64_t>(), {}, 0};
    const auto contributed = line["tokens_contributed"].get<std::uint64_t>();
    const auto is = [&](const char* kind) { return line.contains("kind") && line["kind"] == kind; };
    whole_life = is("resumed");
    if (is("contribution") && whole("outer_step")) {
      last->contributions.emplace_back(line["outer_step"].get<std::uint64_t>(), contributed);
      before_known = false;
    } else if (!whole_life || !before_known) {
      before_known = true;
      before = contributed;
    }
  }
  if (!last) return;
  std::ranges::reverse(last->contributions);
  // Where the tail begins with one, that is long past.
  if (!before_known && !last->contributions.empty()) before = last->contributions.front().second;
  last->tokens_contributed_before = before;
  last_ = std::move(last);
}

void MetricsLog::inner_step(const StepReport& step) {
  write("inner_step", {{"inner_step", step.inner_step},
                       {"outer_step", step.outer_step},
                       {"loss", step.loss},
                       {"tokens", step.tokens},
                       {"tokens_contributed", step.tokens_contributed},
                       {"tokens_per_second", step.tokens_per_second},
                       {"learning_rate", step.learning_rate},
                       {"gradient_norm", step.gradient_norm},
                       {"skipped_steps", step.skipped_steps}});
  if (step.routing == nullptr) return;
  write("experts", {{"inner_step", step.inner_step},
                    {"imbalance", step.routing->imbalance()},
                    {"dropped_share", step.routing->dropped_share()},
                    {"balance_loss", step.mean(step.routing->balance_loss)},
                    {"z_loss", step.mean(step.routing->z_loss)},
                    {"layers", step.routing->layers()},
                    {"tokens_per_expert", step.routing->chosen}});
}

void MetricsLog::held_out(const HeldOutResult& held_out) {
  write("held_out",
        {{"inner_step", held_out.inner_step},
         {"outer_step", held_out.outer_step},
         {"text", std::string(held_out.text)},
         {held_out.loss.bits_per_byte ? "bits_per_byte" : "bits_per_token", held_out.loss.bits()},
         {"perplexity", held_out.loss.perplexity},
         {"objective", to_string(held_out.loss.objective)},
         {"sequences", held_out.loss.sequences}});
}

void MetricsLog::write(std::string_view kind, std::initializer_list<Field> fields) {
  std::string line = fmt::format("{{\"time\":{:.6f},\"kind\":{}", seconds_of(clock_.unix_time()),
                                 json_string(kind));
  for (const auto& field : fields)
    line += fmt::format(",{}:{}", json_string(field.name), json_value(field));
  (void)file_.append(line += '}');
}

}  // namespace isthmus::runtime
