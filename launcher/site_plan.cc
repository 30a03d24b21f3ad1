#include "launcher/site_plan.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>

#include "base/counted.h"
#include "launcher/rank_setup.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

StepWrites writes_of(const SiteFile& file, std::size_t sites) {
  if (file.alone()) return {};
  const double vector = sizeof(float) * static_cast<double>(runtime::trained_parameter_count(
                                            file.model.config, file.fine_tuning()));
  const double coded = codec_share(file.sync.codec) * vector;
  const bool momentum = file.sync.outer == inter::OuterRuleKind::nesterov;
  return {.contribution = coded + vector,
          .others = coded * static_cast<double>(sites - 1),
          .state = vector * (momentum ? 2 : 1)};
}

}  // namespace

SitePlan plan_of(const SiteFile& file, std::size_t sites, double machine_bytes) {
  const auto& model = file.model.config;
  const auto shape = training_shape(file);
  return {.site = file.site.name,
          .parameters = runtime::parameter_count(model),
          .trained = runtime::trained_parameter_count(model, file.fine_tuning()),
          .ranks = file.mesh.ranks(),
          .alone = file.alone(),
          .shape = shape,
          .memory = memory_of(file, sites),
          .writes = writes_of(file, sites),
          .recomputation = runtime::recomputation_plan(model, shape, file.fine_tuning()),
          .machine_bytes = machine_bytes};
}

std::string text_of(const SitePlan& plan) {
  std::string out;
  const auto line = [&](std::string_view kind, double bytes, std::string_view what) {
    fmt::format_to(std::back_inserter(out), "  {:<12} {:>9}  {}\n", kind, about_bytes(bytes), what);
  };
  const auto& memory = plan.memory;
  const auto& training = memory.training;
  const bool is_bf16 = plan.shape.precision == runtime::Precision::bf16;
  fmt::format_to(
      std::back_inserter(out),
      "site {}: {} parameters{}, micro-batches of {} of {}, {}, recompute {}\n\n"
      "each of {}\n",
      plan.site, about_count(static_cast<double>(plan.parameters)),
      plan.trained == plan.parameters
          ? ""
          : fmt::format(", of which {} train", about_count(static_cast<double>(plan.trained))),
      counted(plan.shape.micro_batch, "sequence"), counted(plan.shape.sequence, "token"),
      to_string(plan.shape.precision), to_string(plan.shape.recompute),
      counted(plan.ranks, "rank"));
  line("weights", training.weights, is_bf16 ? "f32, and the matrices in bf16" : "f32");
  line("gradients", training.gradients, "of the parameters, f32");
  line("optimizer", training.optimizer, "AdamW's two moments, f32");
  line("activations", training.activations,
       "and their gradients, and the head's logits: one arena, laid out before the first step");
  line("working", training.working, "of its threads: panels of products, blocks of attention");
  if (!plan.alone) line("exchange", memory.exchange, "base, contribution and new state");
  line("in all", memory.rank(), "");
  if (!plan.alone) {
    out += "the gateway\n";
    line("state", memory.gateway_state,
         "agreed parameters, feedback, momentum, coded contributions");
    line("windows", memory.gateway_windows, "of its links: chunks that wait to be checked");
    line("shared", memory.gateway_shared, "with the first rank");
    line("records", memory.gateway_records, "of all outer steps, at the end of the run");
    line("in all", memory.gateway(), "");
    out += "its disk, for each outer step\n";
    line("contribution", plan.writes.contribution,
         "and what coding cut off: synced before others may go on with it");
    line("others'", plan.writes.others, "contributions, as they arrive");
    line("state", plan.writes.state, "while the next step goes on");
  }
  out += "the site\n";
  line("in all", plan.all_bytes(),
       plan.machine_bytes > 0
           ? fmt::format("of the {} that this machine has", about_bytes(plan.machine_bytes))
           : "");
  const auto& again = plan.recomputation;
  if (again.blocks > 0)
    fmt::format_to(
        std::back_inserter(out),
        "\ntrain.recompute = \"all\": {} made again, each of which saves {} and costs {:.1f} % of "
        "a step's operations: {} saved and {:.0f} % more work\n",
        counted(again.blocks, "layer"), about_bytes(again.saved_bytes_per_block),
        100 * again.flops_per_block / again.flops_without,
        about_bytes(static_cast<double>(again.blocks) * again.saved_bytes_per_block),
        100 * static_cast<double>(again.blocks) * again.flops_per_block / again.flops_without);
  return out;
}

std::string json_of(const SitePlan& plan) {
  const auto& memory = plan.memory;
  auto json = nlohmann::ordered_json::object();
  json["site"] = plan.site;
  json["parameters"] = plan.parameters;
  json["trained"] = plan.trained;
  json["ranks"] = plan.ranks;
  json["precision"] = to_string(plan.shape.precision);
  json["recompute"] = to_string(plan.shape.recompute);
  json["rank"] = {{"weights", memory.training.weights},
                  {"gradients", memory.training.gradients},
                  {"optimizer", memory.training.optimizer},
                  {"activations", memory.training.activations},
                  {"working", memory.training.working},
                  {"exchange", memory.exchange},
                  {"all", memory.rank()}};
  json["gateway"] = {{"state", memory.gateway_state},
                     {"windows", memory.gateway_windows},
                     {"shared", memory.gateway_shared},
                     {"records", memory.gateway_records}};
  json["writes_per_outer_step"] = {{"contribution", plan.writes.contribution},
                                   {"others", plan.writes.others},
                                   {"state", plan.writes.state}};
  json["site_bytes"] = plan.all_bytes();
  json["machine_bytes"] = plan.machine_bytes;
  const auto& again = plan.recomputation;
  json["recomputation"] = {{"blocks", again.blocks},
                           {"saved_bytes_per_block", again.saved_bytes_per_block},
                           {"flops_per_block", again.flops_per_block},
                           {"flops_without", again.flops_without}};
  return json.dump();
}

}  // namespace isthmus::launcher
