// docs/configuration.md and configs/ say what the table of keys says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "launcher/site_schema.h"

namespace isthmus::launcher {
namespace {

std::string contents(const std::string& path) {
  std::ifstream in(std::string(ISTHMUS_SOURCE_DIR) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(ConfigurationDocument, IsWhatTheTableGives) {
  EXPECT_TRUE(contents("docs/configuration.md") == configuration_document())
      << "run: isthmus check --document > docs/configuration.md";
}

}  // namespace
}  // namespace isthmus::launcher
