#include "runtime/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/assert.h"
#include "base/byte_stream.h"
#include "base/counted.h"
#include "runtime/batch_loss.h"
#include "runtime/sampled_digest.h"
#include "runtime/shallow_json.h"

namespace isthmus::runtime {
namespace {

constexpr const char* kFactsFormat = "isthmus tokens 1";
constexpr std::uint64_t kFactsBytesMax = 1 << 20;
constexpr std::uint64_t kDocumentBytes = sizeof(std::uint64_t);
constexpr std::uint64_t kDocumentsAtOnce = 64;

// What makes it known where documents begin.
constexpr std::string_view kMakeOfRecords =
    "make it of JSON lines, a document each, with isthmus data prepare";
constexpr std::string_view kMakeAgain =
    "it was prepared before that was kept; if it is of JSON lines, prepare it again";
constexpr std::string_view kNameTheEnd =
    "its tokenizer names no token that ends one; name it as eos_token in a tokenizer_config.json "
    "beside tokenizer.json";

std::uint64_t bytes_of_width(TokenWidth width) { return static_cast<std::uint64_t>(width); }

std::optional<TokenWidth> parse_width(std::string_view text) {
  for (const auto width : {TokenWidth::byte, TokenWidth::two, TokenWidth::four})
    if (to_string(width) == text) return width;
  return std::nullopt;
}

template <class T>
void widen(std::span<std::int32_t> out) {
  // The ids stand at the end of `out`, and are widened from its front.
  const auto* const from = reinterpret_cast<const std::byte*>(out.data() + out.size()) -
                           static_cast<std::ptrdiff_t>(out.size() * sizeof(T));
  for (std::size_t i = 0; i < out.size(); ++i) {
    T id;
    std::memcpy(&id, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<std::int32_t>(id);  // above 2^31 it is negative: outside, too
  }
}

// llm.c writes 256 numbers of four bytes before the ids: a mark, a version, how many ids follow.
Result<void> refuse_header(const File& file, const std::string& path, std::uint64_t file_bytes) {
  constexpr std::uint64_t kHeaderBytes = 1024;
  struct Header {
    std::uint32_t mark, version, tokens;
  } header;
  if (file_bytes < kHeaderBytes) return {};
  ISTHMUS_CHECK(file.read_at(0, std::as_writable_bytes(std::span(&header, 1))));
  const std::uint64_t width = header.mark == 20240520 && header.version == 1   ? 2
                              : header.mark == 20240801 && header.version == 7 ? 4
                                                                               : 0;
  if (width == 0 || file_bytes != kHeaderBytes + header.tokens * width) return {};
  return Error{ErrorCode::unsupported,
               fmt::format("{} begins with the header of llm.c's files, which is no tokens: cut it "
                           "off with `tail -c +{} {} > FILE`, and name that",
                           path, kHeaderBytes + 1, path)};
}

Result<TokenFileFacts> read_facts(Disk& disk, const std::string& path) {
  ISTHMUS_TRY(const auto text, read_file(disk, facts_path(path), kFactsBytesMax));
  auto facts = parse_token_file_facts(text_of(text));
  if (facts) return facts;
  const auto code = facts.error().code;
  return Error{code, fmt::format("{} cannot be read", facts_path(path)), std::move(facts).error()};
}

Result<std::unique_ptr<File>> open_beside(Disk& disk, const std::string& path,
                                          const std::string& beside) {
  auto file = disk.open(beside, Disk::Open::read);
  if (file) return file;
  const auto code = file.error().code;
  return Error{
      code, fmt::format("{} belongs to {}: copy it there too, or prepare them again", beside, path),
      std::move(file).error()};
}

// Whether the files are as they were when they were written.
Result<void> check_facts(const TokenFileFacts& facts, const std::string& path,
                         std::uint64_t file_bytes, const TokenFormat& format) {
  if (file_bytes != facts.tokens * bytes_of_width(facts.width))
    return Error{ErrorCode::corrupt,
                 fmt::format("{} has {}, but {} says {} as {}; prepare it again", path,
                             counted(file_bytes, "byte"), facts_path(path),
                             counted(facts.tokens, "token"), to_string(facts.width))};
  if (!format.tokenizer.empty() && facts.tokenizer != format.tokenizer)
    return Error{
        ErrorCode::mismatch,
        fmt::format("{} was prepared with another tokenizer ({}) than the model's; prepare "
                    "it again with that one",
                    path, facts.tokenizer_name)};
  return {};
}

}  // namespace

std::string_view to_string(TokenWidth width) {
  return width == TokenWidth::byte ? "uint8" : width == TokenWidth::two ? "uint16" : "uint32";
}

TokenWidth width_for(std::int64_t vocabulary) {
  return vocabulary <= 1 << 16 ? TokenWidth::two : TokenWidth::four;
}

std::string facts_path(const std::string& path) { return path + ".json"; }
std::string mask_path(const std::string& path) { return path + ".mask"; }
std::string documents_path(const std::string& path) { return path + ".documents"; }

std::string to_json(const TokenFileFacts& facts) {
  nlohmann::ordered_json json = {
      {"format", kFactsFormat},       {"dtype", to_string(facts.width)},
      {"tokenizer", facts.tokenizer}, {"tokenizer_name", facts.tokenizer_name},
      {"tokens", facts.tokens},       {"targets", facts.targets},
      {"documents", facts.documents}, {"text_bytes", facts.text_bytes},
      {"mask", facts.has_mask},       {"document_starts", facts.has_documents},
      {"source", facts.source},       {"split", facts.split}};
  if (!facts.tells_documents) json.erase("document_starts");
  if (!facts.documents_digest.empty()) json["document_starts_digest"] = facts.documents_digest;
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<TokenFileFacts> parse_token_file_facts(std::string_view text) {
  const auto json = parse_shallow_json(text);
  const auto damaged = [] {
    return Error{ErrorCode::corrupt, "it is none of what isthmus data prepare writes"};
  };
  if (!json.is_object() || !json.contains("format")) return damaged();
  if (json["format"] != kFactsFormat)
    return Error{ErrorCode::unsupported, "it was written by another version of isthmus"};
  TokenFileFacts facts;
  const auto number = [&json](const char* key, std::uint64_t& value) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_number_unsigned()) return false;
    value = at->get<std::uint64_t>();
    return true;
  };
  const auto words = [&json](const char* key, std::string& value) {
    const auto at = json.find(key);
    if (at == json.end() || !at->is_string()) return false;
    value = at->get<std::string>();
    return true;
  };
  std::string dtype;
  const auto mask = json.find("mask");
  if (!words("dtype", dtype) || !words("tokenizer", facts.tokenizer) ||
      !words("tokenizer_name", facts.tokenizer_name) || !number("tokens", facts.tokens) ||
      !number("targets", facts.targets) || !number("documents", facts.documents) ||
      !number("text_bytes", facts.text_bytes) || !words("source", facts.source) ||
      !words("split", facts.split) || mask == json.end() || !mask->is_boolean())
    return damaged();
  const auto width = parse_width(dtype);
  if (!width || facts.tokens > std::uint64_t{1} << 56 || facts.targets > facts.tokens)
    return damaged();
  facts.width = *width;
  facts.has_mask = mask->get<bool>();
  const auto starts = json.find("document_starts");  // not written by the first versions
  if (starts != json.end() && !starts->is_boolean()) return damaged();
  facts.tells_documents = starts != json.end();
  facts.has_documents = facts.tells_documents && starts->get<bool>();
  if (json.contains("document_starts_digest") &&
      !words("document_starts_digest", facts.documents_digest))
    return damaged();
  return facts;
}

Result<TokenFile> TokenFile::open(Disk& disk, const std::string& path, const TokenFormat& format) {
  TokenFile opened;
  opened.path_ = path;
  opened.to_know_documents_ = kMakeOfRecords;
  opened.vocabulary_ = format.vocabulary;
  opened.width_ = format.width;
  ISTHMUS_TRY(opened.file_, disk.open(path, Disk::Open::read));
  ISTHMUS_TRY(const auto bytes, opened.file_->size());
  std::optional<TokenFileFacts> facts;
  bool has_mask = false, has_documents = false;
  ISTHMUS_TRY(const bool has_facts, disk.exists(facts_path(path)));
  if (has_facts) {
    ISTHMUS_TRY(facts, read_facts(disk, path));
    ISTHMUS_CHECK(check_facts(*facts, path, bytes, format));
    opened.width_ = facts->width;
    opened.names_tokenizer_ = !format.tokenizer.empty();
    has_mask = facts->has_mask;
    has_documents = facts->has_documents;
    if (!facts->tells_documents) opened.to_know_documents_ = kMakeAgain;
  } else {
    ISTHMUS_CHECK(refuse_header(*opened.file_, path, bytes));
    ISTHMUS_TRY(has_mask, disk.exists(mask_path(path)));
    ISTHMUS_TRY(has_documents, disk.exists(documents_path(path)));
    if (!has_documents && opened.width_ != TokenWidth::byte) {  // a text's bytes are no end tokens
      opened.end_ = format.end;
      opened.to_know_documents_ = kNameTheEnd;
    }
  }
  opened.tokens_ = bytes / bytes_of_width(opened.width_);
  if (bytes % bytes_of_width(opened.width_) != 0)
    return Error{
        ErrorCode::corrupt,
        fmt::format("{} has {}, which is no whole number of {} tokens; data.dtype says how "
                    "they are written",
                    path, counted(bytes, "byte"), to_string(opened.width_))};
  if (has_mask) {
    ISTHMUS_TRY(opened.mask_, open_beside(disk, path, mask_path(path)));
    ISTHMUS_TRY(const auto mask_bytes, opened.mask_->size());
    if (mask_bytes != opened.tokens_)
      return Error{ErrorCode::corrupt, fmt::format("{} has {}, but {} has {}; prepare them again",
                                                   mask_path(path), counted(mask_bytes, "byte"),
                                                   path, counted(opened.tokens_, "token"))};
  }
  if (has_documents) ISTHMUS_CHECK(opened.open_documents(disk, facts));
  return opened;
}

Result<void> TokenFile::open_documents(Disk& disk, const std::optional<TokenFileFacts>& facts) {
  const auto path = documents_path(path_);
  ISTHMUS_TRY(documents_, open_beside(disk, path_, path));
  ISTHMUS_TRY(const auto bytes, documents_->size());
  document_count_ = bytes / kDocumentBytes;
  if (bytes % kDocumentBytes != 0 || document_count_ > tokens_)
    return Error{
        ErrorCode::corrupt,
        fmt::format("{} has {}, which is no list of where the documents of {} begin, eight "
                    "bytes for each; prepare them again",
                    path, counted(bytes, "byte"), counted(tokens_, "token"))};
  if (!facts) return {};
  std::uint64_t first = 0, last = 0;
  if (document_count_ > 0) {
    ISTHMUS_CHECK(read_documents(0, std::span(&first, 1)));
    ISTHMUS_CHECK(read_documents(document_count_ - 1, std::span(&last, 1)));
  }
  if (document_count_ != facts->documents || first != 0 ||
      last >= std::max<std::uint64_t>(tokens_, 1))
    return Error{
        ErrorCode::corrupt,
        fmt::format("{} has {} from token {} to token {}, but {} says {} in {}; prepare it "
                    "again",
                    path, counted(document_count_, "document"), first, last, facts_path(path_),
                    counted(facts->documents, "document"), counted(tokens_, "token"))};
  if (facts->documents_digest.empty()) return {};
  ISTHMUS_TRY(const auto digest, sampled_digest(*documents_, bytes));
  if (digest.hex() == facts->documents_digest) return {};
  return Error{ErrorCode::corrupt,
               fmt::format("{} is not the list that {} means, though it has as many documents: it "
                           "belongs to another file; put that of {} there, or prepare it again",
                           path, facts_path(path_), path_)};
}

Result<void> TokenFile::read(std::uint64_t first, std::span<std::int32_t> out) const {
  const auto size = out.size() * bytes_of_width(width_);
  const auto bytes = std::as_writable_bytes(out).last(size);
  if (auto status = file_->read_at(first * bytes_of_width(width_), bytes); !status)
    return Error{status.error().code,
                 fmt::format("{} changed while it is in use; put it back and start again", path_),
                 std::move(status).error()};
  if (width_ == TokenWidth::byte)
    widen<std::uint8_t>(out);
  else if (width_ == TokenWidth::two)
    widen<std::uint16_t>(out);
  for (std::size_t i = 0; i < out.size(); ++i)
    if (out[i] < 0 || out[i] >= vocabulary_)
      return Error{ErrorCode::corrupt,
                   fmt::format("{}: token {} is {}, but the model's vocabulary has {}: it was "
                               "written by another tokenizer, or is not of {}",
                               path_, first + i, static_cast<std::uint32_t>(out[i]), vocabulary_,
                               to_string(width_))};
  return {};
}

Result<void> TokenFile::hide(std::uint64_t first, std::span<std::int32_t> targets) const {
  if (mask_ == nullptr) return {};
  Bytes counts(targets.size());
  if (auto status = mask_->read_at(first, counts); !status)
    return Error{
        status.error().code,
        fmt::format("{} changed while it is in use; put it back and start again", mask_path(path_)),
        std::move(status).error()};
  for (std::size_t i = 0; i < targets.size(); ++i)
    if (counts[i] == std::byte{0}) targets[i] = kIgnoredTarget;
  return {};
}

Result<void> TokenFile::must_know_documents() const {
  if (knows_documents()) return {};
  return Error{
      ErrorCode::invalid_argument,
      fmt::format("data.documents is \"apart\", but it is not known where the documents of "
                  "{} begin: {}; or leave them joined",
                  path_, to_know_documents_)};
}

Result<void> TokenFile::read_documents(std::uint64_t document,
                                       std::span<std::uint64_t> first_tokens) const {
  auto status =
      documents_->read_at(document * kDocumentBytes, std::as_writable_bytes(first_tokens));
  if (status) return {};
  return Error{status.error().code,
               fmt::format("{} changed while it is in use; put it back and start again",
                           documents_path(path_)),
               std::move(status).error()};
}

Result<std::uint64_t> TokenFile::document_after(std::uint64_t token) const {
  std::uint64_t first = 0;
  for (auto end = document_count_; first < end;) {
    const auto middle = first + (end - first) / 2;
    std::uint64_t begins = 0;
    ISTHMUS_CHECK(read_documents(middle, std::span(&begins, 1)));
    if (begins <= token)
      first = middle + 1;
    else
      end = middle;
  }
  return first;
}

Result<void> TokenFile::part(std::uint64_t first, std::span<const std::int32_t> tokens,
                             std::span<std::int32_t> starts,
                             std::span<std::int32_t> targets) const {
  ISTHMUS_ASSERT(knows_documents() && starts.size() == tokens.size() &&
                 targets.size() == tokens.size());
  std::size_t begin = 0;  // of the document whose tokens come next
  const auto begin_at = [&](std::size_t next) {
    std::fill_n(starts.begin() + static_cast<std::ptrdiff_t>(begin), next - begin,
                static_cast<std::int32_t>(begin));
    begin = next;
  };
  if (documents_ == nullptr) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] != *end_) continue;
      targets[i] = kIgnoredTarget;
      begin_at(i + 1);
    }
    begin_at(tokens.size());
    return {};
  }
  ISTHMUS_TRY(auto document, document_after(first));
  std::array<std::uint64_t, kDocumentsAtOnce> some;
  for (auto before = first; document < document_count_;) {
    const auto here = std::span(some).first(std::min(kDocumentsAtOnce, document_count_ - document));
    ISTHMUS_CHECK(read_documents(document, here));
    for (const auto begins : here) {
      if (begins <= before || begins >= tokens_)
        return Error{ErrorCode::corrupt,
                     fmt::format("{}: document {} begins at token {}, which is not after that of "
                                 "the one before, or not in {}; prepare them again",
                                 documents_path(path_), document, begins, path_)};
      if (begins - first > tokens.size()) {
        begin_at(tokens.size());
        return {};
      }
      targets[begins - first - 1] = kIgnoredTarget;
      begin_at(begins - first);
      before = begins;
      ++document;
    }
  }
  begin_at(tokens.size());
  return {};
}

}  // namespace isthmus::runtime
