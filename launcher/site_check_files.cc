// The files that a site file names: that they can be read, and are what they should be.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "base/counted.h"
#include "launcher/rank_setup.h"
#include "launcher/site_check.h"
#include "launcher/site_check_model.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/model_directory.h"

namespace isthmus::launcher {
namespace {

constexpr std::int64_t kByteTokens = 256;

// A model that is there already: what it is, and that it fits the rest of the file.
void check_model_folder(SiteText& text, Disk& disk, bool adapter_readable) {
  const auto& from = text.file.model.from;
  const auto fault = [&text](const std::string& what) {
    text.faults.add(text.region("model.from"), fmt::format("model.from: {}", what));
  };
  auto config = runtime::read_model_config(disk, from);
  if (!config) return fault(config.error().text());
  if (const auto whole = runtime::check_parameters(disk, from, *config); !whole)
    fault(whole.error().text());
  text.file.model.config = *config;
  check_context(text);
  check_router(text);
  check_masking(text);
  if (!check_tuning(text)) return;
  check_memory(text);
  if (!adapter_readable) return;
  if (const auto fits =
          runtime::check_adapter(disk, text.file.lora.from, *config, text.file.fine_tuning());
      !fits)
    text.faults.add(text.region("lora.from"), fmt::format("lora.from: {}", fits.error().text()));
}

// That files are as they were prepared, with this tokenizer. That one cannot be read has been said.
void check_tokens(SiteText& text, Disk& disk, const runtime::Tokenizer& tokenizer) {
  const auto& file = text.file;
  const auto format = token_format(file, tokenizer, file.model.config.vocabulary);
  const bool apart = file.data.documents == runtime::Documents::apart;
  const auto check = [&](const std::string& key, const std::string& path, bool trained_on) {
    const auto opened = runtime::TokenFile::open(disk, path, format);
    std::string why;
    if (opened && opened->width() != runtime::TokenWidth::byte &&
        opened->tokens() <= static_cast<std::uint64_t>(file.train.sequence))
      why = fmt::format("{} has {}, but one sequence of train.sequence = {} tokens needs {}", path,
                        counted(opened->tokens(), "token"), file.train.sequence,
                        file.train.sequence + 1);
    if (opened && apart && trained_on)
      if (const auto known = opened->must_know_documents(); !known) why = known.error().text();
    if (!opened && disk.open(path, Disk::Open::read)) why = opened.error().text();
    if (!why.empty())
      text.faults.add(text.region(key), fmt::format("{}: {}", key.substr(0, key.find('[')), why));
  };
  for (std::size_t i = 0; i < file.data.train.size(); ++i)
    check(fmt::format("data.train[{}]", i), file.data.train[i].path, true);
  for (std::size_t i = 0; i < file.data.held_out.size(); ++i)
    check(fmt::format("data.held_out[{}]", i), file.data.held_out[i].path, false);
}

// That what text becomes are tokens that the model knows.
void check_tokenizer(SiteText& text, Disk& disk) {
  const bool written = text.written("model.tokenizer");
  const auto* const key = written ? "model.tokenizer" : "model.from";
  const auto tokenizer = site_tokenizer(text.file, disk);
  if (!tokenizer) {
    text.faults.add(text.region(key), fmt::format("{}: {}", key, tokenizer.error().text()));
    return;
  }
  // Of bytes the special tokens may be missing.
  const auto wanted =
      is_byte_tokenizer(**tokenizer) ? kByteTokens : std::int64_t{(*tokenizer)->vocabulary()};
  check_tokens(text, disk, **tokenizer);
  check_mask_token(text, **tokenizer);
  const auto vocabulary = text.file.model.config.vocabulary;
  if (vocabulary >= wanted) return;
  text.faults.add(text.region(text.written("model.vocabulary") ? "model.vocabulary" : key),
                  fmt::format("{}: the tokenizer ({}) needs a vocabulary of at least {}, but {} {}",
                              key, (*tokenizer)->description(), wanted,
                              text.written("model.from") ? "the model has" : "model.vocabulary is",
                              vocabulary));
}

// Some file systems (/proc) take none, whatever their modes say: one is made, and removed again.
// "": it can be, or would if there were room.
std::string why_no_folder_in(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return fmt::format("{} is no folder", folder.string());
  auto probe = (folder / ".isthmus-check-XXXXXX").string();
  if (::mkdtemp(probe.data()) != nullptr) {
    ::rmdir(probe.c_str());
    return {};
  }
  const int why = errno;
  if (why == ENOSPC || why == EDQUOT) return {};
  return fmt::format("cannot write in {} ({})", folder.string(),
                     std::generic_category().message(why));
}

}  // namespace

void check_files(SiteText& text, Disk& disk) {
  const auto readable = [&text](std::string_view key, const std::string& path, bool folder,
                                std::int64_t bytes_min = 1) {
    if (path.empty()) return false;
    struct stat found {};
    std::string why;
    if (::stat(path.c_str(), &found) != 0)
      why = fmt::format("there is no {}", std::filesystem::absolute(path).string());
    else if (folder != S_ISDIR(found.st_mode))
      why = fmt::format("{} is {} folder", path, folder ? "no" : "a");
    else if (::access(path.c_str(), R_OK) != 0)
      why = fmt::format("{} cannot be read: {}", path, std::generic_category().message(errno));
    else if (!folder && found.st_size == 0)
      why = fmt::format("{} is empty", path);
    else if (!folder && found.st_size < bytes_min)
      why = fmt::format("{} has {}, but one sequence of train.sequence = {} tokens needs {}", path,
                        counted(found.st_size, "byte"), bytes_min - 1, bytes_min);
    if (!why.empty())
      text.faults.add(text.region(key), fmt::format("{}: {}", key.substr(0, key.find('[')), why));
    return why.empty();
  };
  const auto& file = text.file;
  const auto text_bytes_min = file.train.sequence + 1;  // the last token has a next one
  for (std::size_t i = 0; i < file.data.train.size(); ++i)
    readable(fmt::format("data.train[{}]", i), file.data.train[i].path, false, text_bytes_min);
  for (std::size_t i = 0; i < file.data.held_out.size(); ++i)
    readable(fmt::format("data.held_out[{}]", i), file.data.held_out[i].path, false,
             text_bytes_min);
  const bool adapter_readable = readable("lora.from", file.lora.from, true);
  if (readable("model.from", file.model.from, true))
    check_model_folder(text, disk, adapter_readable);
  check_tokenizer(text, disk);
  if (!file.site.run_dir.empty()) {
    // The nearest folder that is there must take what is missing.
    std::error_code ignored;
    auto folder = std::filesystem::absolute(file.site.run_dir, ignored);
    while (!folder.empty() && !std::filesystem::exists(folder, ignored) &&
           folder != folder.parent_path())
      folder = folder.parent_path();
    if (const auto why = why_no_folder_in(folder); !why.empty())
      text.faults.add(
          text.region("site.run_dir"),
          fmt::format("site.run_dir: cannot make {}: {}",
                      folder == file.site.run_dir ? "a folder there" : file.site.run_dir, why));
  }
}

}  // namespace isthmus::launcher
