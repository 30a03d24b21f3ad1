// What --help prints: in lines that a terminal of 80 columns shows whole.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace isthmus::launcher {

// For CLI::App::formatter, before commands are added: they take it over.
std::shared_ptr<CLI::FormatterBase> make_help_text();

}  // namespace isthmus::launcher
