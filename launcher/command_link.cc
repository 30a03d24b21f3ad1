#include <fmt/format.h>
#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "inter/link_test_frames.h"
#include "inter/status_client.h"
#include "launcher/command.h"
#include "launcher/link_test_text.h"
#include "launcher/run_folder.h"
#include "launcher/site_file.h"
#include "launcher/stop_request.h"
#include "launcher/units.h"

namespace isthmus::launcher {
namespace {

struct LinkArguments {
  std::string peer;
  SiteArguments site;
  bool force = false;
  bool json = false;
  std::string time, bytes;
};

// Without a file: the one site file of this folder.
Result<SiteText> only_site(SiteArguments arguments) {
  if (arguments.paths.empty()) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(".", ignored))
      if (entry.path().extension() == ".toml") {
        auto path = entry.path().filename().string();
        if (auto text = read_site_file(path, {}); text && !text->file.site.name.empty())
          arguments.paths.push_back(std::move(path));
      }
    if (arguments.paths.size() != 1)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("from which site? There {} in this folder: name one",
                               arguments.paths.empty()
                                   ? "is no site file"
                                   : fmt::format("are {} site files", arguments.paths.size()))};
  }
  ISTHMUS_TRY(auto text, read_site_file(arguments.paths.front(), arguments.overrides));
  if (text.faults.has_override() || text.file.site.name.empty() || text.file.site.run_dir.empty())
    return Error{ErrorCode::invalid_argument, text.fault_text()};
  if (text.file.alone())
    return Error{
        ErrorCode::invalid_argument,
        fmt::format("{} has no site.roster: a site that trains alone has no links", text.path)};
  return text;
}

Result<inter::attach::LinkTest> wish_of(const LinkArguments& options) {
  inter::attach::LinkTest wish{.number = 0, .peer = options.peer, .force = options.force};
  if (!options.time.empty()) {
    wish.time = parse_duration(options.time).value_or(0);
    if (wish.time < kSecond || wish.time > inter::kLinkTestTimeMax)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("--time must be \"1 s\" to \"{}\", not \"{}\"",
                               exact_duration(inter::kLinkTestTimeMax), options.time)};
  }
  if (!options.bytes.empty()) {
    // Less tells nothing: it has left before anything can be measured.
    constexpr std::uint64_t kBytesMin = 100'000;
    wish.bytes_max = static_cast<std::uint64_t>(parse_bytes(options.bytes).value_or(0));
    if (wish.bytes_max < kBytesMin || wish.bytes_max > inter::kLinkTestBytesMax)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("--bytes must be \"100 kB\" to \"1 GiB\", not \"{}\"", options.bytes)};
  }
  // Asked for again and again under this number, the test is begun once.
  if (::getrandom(&wish.number, sizeof wish.number, 0) != sizeof wish.number)
    return Error{ErrorCode::io, "the system gives no randomness"};
  wish.number = std::max<std::uint64_t>(wish.number, 1);
  return wish;
}

Result<nlohmann::json> run_test(const std::string& socket, const inter::attach::LinkTest& wish,
                                bool quiet) {
  constexpr Nanoseconds kPatience = 2 * kSecond;
  constexpr auto kAskEvery = std::chrono::milliseconds(250), kLook = std::chrono::milliseconds(50);
  const auto& stop = catch_stop();
  ISTHMUS_TRY(auto gateway, inter::LinkTestClient::connect(socket));
  std::string doing;
  while (!stop) {
    auto said = gateway.ask(wish, kPatience);
    if (!said && said.error().code == ErrorCode::closed)
      return Error{ErrorCode::unavailable,
                   "this site's gateway has ended, and the test with it: start it again "
                   "(isthmus launch), and then the test"};
    ISTHMUS_TRY(const auto text, std::move(said));
    auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object() || !json.contains("state"))
      return Error{ErrorCode::bad_frame, "the gateway's answer does not decode"};
    if (json["state"] == "done") return json;
    if (const auto& now = json["doing"]; now.is_string() && now != doing) {
      doing = now.get<std::string>();
      if (!quiet) fmt::print(stderr, "{} …\n", doing);
    }
    for (auto slept = kLook; slept <= kAskEvery && !stop; slept += kLook)
      std::this_thread::sleep_for(kLook);
  }
  return Error{ErrorCode::cancelled, "stopped, and the test with it"};
}

ExitCode test(const LinkArguments& options) {
  const auto wish = wish_of(options);
  if (!wish) return fail(wish.error());
  const auto site = only_site(options.site);
  if (!site) return fail(site.error());
  const auto json = run_test(RunFolder(site->file.site.run_dir).socket(), *wish, options.json);
  if (!json) {
    if (options.json) fmt::print("{}\n", error_json("peer", options.peer, json.error()));
    return fail(json.error());
  }
  fmt::print("{}", options.json
                       ? json->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                       : link_test_text(*json));
  return ExitCode::done;
}

}  // namespace

void add_link(Command program) {
  const auto command = program.subcommand("link", "Test the link to another site");
  command.footer("Example:\n  isthmus link test beta alpha.toml");
  const auto one = command.subcommand(
      "test",
      "Round trip, capacity both ways, losses, congestion control, and the kernel's window limits");
  const auto options = std::make_shared<LinkArguments>();
  one.option("PEER", options->peer, "The other site, as the roster names it").required();
  one.option("FILE", options->site.paths, "This site's file (default: the only one in this folder)")
      .takes_one();
  add_set(one, options->site, "site.run_dir=runs/alpha");
  one.flag("--force", options->force,
           "Also while outer steps are exchanged; that delays them, and spoils the figures. "
           "PEER lets its own be delayed so once in ten minutes");
  one.option("--time", options->time,
             "For each direction: \"1 s\" to \"30 s\" (default: \"4 s\", or 40 round trips)");
  one.option("--bytes", options->bytes,
             "For each direction, at most: \"100 kB\" to \"1 GiB\" (default: \"256 MiB\")");
  one.flag("--json", options->json, "One JSON object");
  one.footer(
      "The gateways of both sites must be up; a run need not be. Ctrl-C ends the test at both. "
      "Their\nrate_limit and other keys are those with which they were started: of FILE, and so "
      "of --set, only\nwhat finds this site's gateway counts here.\n\n"
      "The figures are of the bulk lane, as outer steps use it: rate_limit and polite hold, so "
      "that\nthose of a polite gateway tell what it took, not what the line carries. They are of "
      "the "
      "last\nthree fifths of the time: before that congestion control finds its rate. Capacity is "
      "what TCP\ncarried, about 3 % less than the line, which carries the headers of TCP and IP "
      "too. "
      "It is\nnot measured where that time is less than 5 round trips, bytes came in it too seldom "
      "or faster and\nfaster: ask for more (--bytes, --time). Losses are what the sender's kernel "
      "sent again, what a full\nqueue on the way dropped included; congestion controls other than "
      "bbr cause some themselves.\n\n"
      "In JSON: state (\"done\"), here and peer (the sites' names), round_trip_ms (min, median), "
      "to_peer and\nfrom_peer (mbit_s, warm_s, bytes, segments, segments_resent, loss, "
      "congestion_control and why,\ndialed: by the sender, connections, window_limited and "
      "buffer_limited: shares of the time,\nbandwidth_delay_bytes of all connections, "
      "rate_limit_mbit_s or null, polite, beside_exchange: of a\nforced test, whose figures but "
      "bytes are then of the exchange too; where too little came to tell:\nnull), kernel_here and "
      "kernel_there (tcp_rmem, tcp_wmem), advice (sentences). A test that fails has\npeer and "
      "\"error\" (code, message) instead.\n\n"
      "Example:\n  isthmus link test beta alpha.toml --time \"10 s\"");
  one.runs([options] { return test(*options); });
}

}  // namespace isthmus::launcher
