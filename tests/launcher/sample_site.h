// A site file without faults, of which tests change lines.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/site_check.h"
#include "launcher/site_file.h"

namespace isthmus::launcher {

inline constexpr std::string_view kGood = R"([site]
name = "alpha"
run_dir = "run"

[model]
layers = 6
hidden = 256
heads = 8
kv_heads = 4
ffn = 704

[data]
train = [{ path = "en.bin" }, { path = "/abs/de.bin", weight = 2 }]
held_out = [{ name = "en", path = "en.held.bin" }]

[train]
learning_rate = 2e-3
warmup_steps = 20
cpus = "0-1"
threads = 2

[sync]
inner_steps = 10
outer_steps = 24
straggler_wait = "1 min"

[gateway]
rate_limit = "20 Mbit/s"
memory = "1 GiB"
)";

inline const Machine kMachine{.cpus = {0, 1, 2, 3}, .unix_time = 0};

inline std::string replaced(std::string_view from, std::string_view to) {
  std::string text{kGood};
  const auto place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

inline SiteText checked(std::string source, std::vector<std::string> overrides = {}) {
  auto text = parse_site_text("site.toml", std::move(source), overrides);
  if (text.is_toml) check_values(text, kMachine);
  return text;
}

// The sentence of the only fault.
inline std::string only_fault(const SiteText& text) {
  EXPECT_EQ(text.faults.size(), 1U) << text.fault_text();
  return text.faults.empty() ? "" : text.faults.sorted().front().message;
}

}  // namespace isthmus::launcher
