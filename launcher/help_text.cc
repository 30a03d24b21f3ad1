#include "launcher/help_text.h"

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>

#include "launcher/wrapped_text.h"

namespace isthmus::launcher {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::size_t kColumn = 24;  // of what names mean

class HelpText final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool positional) const override {
    return entry(make_option_name(option, positional) + make_option_opts(option),
                 make_option_desc(option));
  }
  std::string make_subcommand(const CLI::App* command) const override {
    return entry(command->get_name(), command->get_description());
  }

 private:
  static std::string entry(const std::string& name, const std::string& meaning) {
    return entry_of(name, meaning, kColumn, kWidth);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> make_help_text() { return std::make_shared<HelpText>(); }

}  // namespace isthmus::launcher
