#include "runtime/text_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/byte_stream.h"
#include "base/counted.h"
#include "runtime/byte_tokenizer.h"
#include "runtime/document_layout.h"
#include "runtime/prepare_journal.h"
#include "runtime/sampled_digest.h"

namespace isthmus::runtime {
namespace {

constexpr const char* kTemporaryEnding = ".new";
constexpr const char* kJournalEnding = ".journal";
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;  // of documents that one thread takes
constexpr std::size_t kChunksPerThread = 4;                // from one journal entry to the next
constexpr std::string_view kBlankLine = "\n\n";

enum Part : std::size_t { kTrain, kHeldOut };

// What documents become: text, or tokens.
struct Layout {
  DocumentFormat format;
  const Tokenizer* tokenizer;  // null: text
  TokenWidth width;
  bool holds_out;
  RecordKind kind;  // of all records

  bool has_mask() const { return tokenizer != nullptr && kind != RecordKind::text; }
  bool has_documents() const { return format == DocumentFormat::json_lines; }
  Part part_of(std::uint64_t document) const {
    return holds_out && document % kHeldOutPeriod == kHeldOutPlace ? kHeldOut : kTrain;
  }
};

struct CodedPart {
  Bytes tokens, mask;
  std::vector<std::uint64_t> documents;  // where each begins, counted from the part's first token
  PartCounts counts;
};

// Documents, and what one thread makes of them.
struct Chunk {
  std::vector<DocumentPiece> pieces;
  std::array<CodedPart, 2> parts;
  Result<void> done;
};

void append(Bytes& out, std::string_view text) {
  const auto bytes = bytes_of(text);
  out.insert(out.end(), bytes.begin(), bytes.end());
}

template <class T>
void append_as(Bytes& out, std::span<const std::int32_t> ids) {
  auto at = out.size();
  out.resize(at + ids.size() * sizeof(T));
  for (const auto id : ids) {
    const auto narrow = static_cast<T>(id);
    std::memcpy(out.data() + at, &narrow, sizeof(T));  // little-endian
    at += sizeof(T);
  }
}
void append(Bytes& out, std::span<const std::int32_t> ids, TokenWidth width) {
  if (width == TokenWidth::two)
    append_as<std::uint16_t>(out, ids);
  else
    append_as<std::uint32_t>(out, ids);
}

std::uint64_t text_bytes_of(const Record& record) {
  std::uint64_t bytes = record.text.size() + record.prompt.size() + record.completion.size();
  for (const auto& message : record.messages) bytes += message.content.size();
  return bytes;
}

// As they are written, where so many tokens come before the part.
Bytes documents_of(const CodedPart& part, std::uint64_t tokens_before) {
  ByteWriter out;
  for (const auto begins : part.documents) out.put(tokens_before + begins);
  return out.take();
}

class Coder {
 public:
  Coder(const Layout& layout, Chunk& chunk) : layout_(layout), chunk_(chunk) {}

  Result<void> run() {
    for (const auto& piece : chunk_.pieces) {
      auto& part = chunk_.parts[layout_.part_of(piece.document)];
      const bool is_record = layout_.format == DocumentFormat::json_lines;
      if (piece.begins && !is_record) ++part.counts.documents;
      ISTHMUS_CHECK(is_record                      ? record(piece, part)
                    : layout_.tokenizer != nullptr ? tokens(piece, part)
                                                   : text(piece, part));
    }
    return {};
  }

 private:
  // Joined as it was parted: a part's first paragraph has no blank line before it.
  Result<void> text(const DocumentPiece& piece, CodedPart& part) {
    const bool is_first =
        piece.document == 0 || (layout_.holds_out && piece.document == kHeldOutPlace);
    const auto before = part.tokens.size();
    if (piece.begins && !is_first) append(part.tokens, kBlankLine);
    append(part.tokens, piece.text);
    const auto size = part.tokens.size() - before;
    part.counts.tokens += size;
    part.counts.targets += size;
    part.counts.text_bytes += size;
    return {};
  }

  Result<void> tokens(const DocumentPiece& piece, CodedPart& part) {
    const auto text = piece.ends ? piece.text + std::string(kBlankLine) : piece.text;
    ids_.clear();
    if (auto done = layout_.tokenizer->encode(text, ids_); !done) {
      const auto code = done.error().code;
      return Error{code, fmt::format("paragraph {}", piece.document + 1), std::move(done).error()};
    }
    append(part.tokens, ids_, layout_.width);
    part.counts.tokens += ids_.size();
    part.counts.targets += ids_.size();
    part.counts.text_bytes += text.size();
    return {};
  }

  Result<void> record(const DocumentPiece& piece, CodedPart& part) {
    Tokens laid_out;
    auto done = [&]() -> Result<void> {
      ISTHMUS_TRY(const auto record, parse_record(piece.text));
      if (record.kind != layout_.kind)
        return Error{ErrorCode::corrupt,
                     "it is of another kind than the first; put the kinds into files of their own"};
      part.counts.text_bytes += text_bytes_of(record);
      return lay_out(record, *layout_.tokenizer, laid_out);
    }();
    if (!done) {
      const auto code = done.error().code;
      return Error{code, fmt::format("line {}", piece.line), std::move(done).error()};
    }
    if (!laid_out.ids.empty()) {  // else it begins nowhere
      part.documents.push_back(part.counts.tokens);
      ++part.counts.documents;
    }
    append(part.tokens, laid_out.ids, layout_.width);
    part.counts.tokens += laid_out.ids.size();
    part.counts.targets += static_cast<std::uint64_t>(
        std::count(laid_out.targets.begin(), laid_out.targets.end(), std::byte{1}));
    if (layout_.has_mask())
      part.mask.insert(part.mask.end(), laid_out.targets.begin(), laid_out.targets.end());
    return {};
  }

  const Layout& layout_;
  Chunk& chunk_;
  std::vector<std::int32_t> ids_;
};

// However they are written.
bool same_file(const std::string& a, const std::string& b) {
  std::error_code none, ignored;
  return std::filesystem::equivalent(a, b, none) ||
         std::filesystem::weakly_canonical(a, ignored) ==
             std::filesystem::weakly_canonical(b, ignored);
}

// Neither part may replace the text, or the other part.
Result<void> refuse_same_files(const PrepareOptions& options) {
  std::vector<std::string> files = {options.source};
  for (const auto& path : {options.train, options.held_out})
    if (!path.empty())
      for (const auto& file : {path, mask_path(path), documents_path(path), facts_path(path)}) {
        files.push_back(file);
        files.push_back(file + kTemporaryEnding);
      }
  for (std::size_t i = 0; i < files.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (same_file(files[i], files[j]))
        return Error{ErrorCode::invalid_argument,
                     fmt::format("the text, what is to train on and what is held out must be three "
                                 "files: {} and {} are one",
                                 files[j], files[i])};
  return {};
}

// A line of the source that is at fault, and whoever it came from.
Error of_source(const std::string& source, Error because) {
  const auto code = because.code;
  return {code, source, std::move(because)};
}

class Preparation {
 public:
  Preparation(Disk& disk, ThreadPool& pool, const PrepareOptions& options)
      : disk_(disk),
        pool_(pool),
        options_(options),
        paths_{options.train,
               options.held_out,
               mask_path(options.train),
               options.held_out.empty() ? "" : mask_path(options.held_out),
               documents_path(options.train),
               options.held_out.empty() ? "" : documents_path(options.held_out)} {}

  Result<PreparedText> run() {
    ISTHMUS_CHECK(refuse_same_files(options_));
    ISTHMUS_CHECK(open_source());
    ISTHMUS_TRY(lock_, disk_.lock(journal_path()));
    auto prepared = write_all();
    // What a full disk or a broken one stopped can be gone on with, as what lacks but its names;
    // the rest would fail again.
    if (!prepared && !last_.whole && prepared.error().code != ErrorCode::io &&
        prepared.error().code != ErrorCode::disk_full)
      remove_new();
    return prepared;
  }

 private:
  std::string journal_path() const { return options_.train + kJournalEnding; }
  std::vector<Part> parts() const {
    return layout_.holds_out ? std::vector{kTrain, kHeldOut} : std::vector{kTrain};
  }
  // Whether there is this one of the files.
  bool has(std::size_t file) const {
    return !paths_[file].empty() &&
           (file < 2 || (file < 4 ? layout_.has_mask() : layout_.has_documents()));
  }
  static std::string temporary(const std::string& path) { return path + kTemporaryEnding; }

  Result<void> open_source() {
    ISTHMUS_TRY(const auto file, disk_.open(options_.source, Disk::Open::read));
    ISTHMUS_TRY(source_bytes_, file->size());
    ISTHMUS_TRY(source_digest_, sampled_digest(*file, source_bytes_));
    ISTHMUS_CHECK(choose_layout());
    for (const auto& path : {options_.train, options_.held_out})
      if (const auto folder = folder_of(path); !folder.empty())
        ISTHMUS_CHECK(disk_.make_folders(folder));
    return {};
  }

  Result<void> choose_layout() {
    layout_ = {.format = options_.format,
               .tokenizer = options_.tokenizer,
               .width = TokenWidth::byte,
               .holds_out = !options_.held_out.empty(),
               .kind = RecordKind::text};
    if (layout_.format == DocumentFormat::json_lines) {
      if (layout_.tokenizer == nullptr) layout_.tokenizer = bytes_.get();
      ISTHMUS_TRY(auto reader, DocumentReader::open(options_.source, layout_.format));
      auto first = reader.next();
      if (!first) return of_source(options_.source, std::move(first).error());
      if (*first) {
        auto record = parse_record((*first)->text);
        if (!record)
          return of_source(options_.source,
                           Error{ErrorCode::corrupt, fmt::format("line {}", (*first)->line),
                                 std::move(record).error()});
        layout_.kind = record->kind;
      }
    }
    if (layout_.tokenizer != nullptr) layout_.width = width_for(layout_.tokenizer->vocabulary());
    return {};
  }

  // Whoever goes on must do the same as whoever began.
  security::Digest task() const {
    ByteWriter identity;
    identity.string("isthmus data prepare 3").put(source_bytes_).raw(source_digest_.bytes);
    identity.put(layout_.format).put(layout_.width).put(layout_.holds_out).put(layout_.kind);
    std::error_code ignored;  // then it is ""
    if (layout_.holds_out)
      identity.string(
          std::filesystem::relative(options_.held_out, options_.train, ignored).string());
    if (layout_.tokenizer != nullptr) {
      identity.raw(layout_.tokenizer->digest().bytes);
      identity.put(layout_.tokenizer->end().value_or(-1));
    }
    return security::blake2b(identity.view());
  }

  Result<PreparedText> write_all() {
    ISTHMUS_CHECK(find_where_to_go_on());
    if (last_.whole) return publish_all();
    auto reader = DocumentReader::open(options_.source, layout_.format, last_.source);
    if (!reader) return of_source(options_.source, std::move(reader).error());
    std::vector<Chunk> chunks(kChunksPerThread * pool_.workers());
    for (;;) {
      ISTHMUS_TRY(const auto filled, fill(*reader, chunks));
      if (filled == 0) break;
      pool_.parallel_for(filled, [&](std::size_t i, std::size_t) {
        chunks[i].done = Coder(layout_, chunks[i]).run();
      });
      for (std::size_t i = 0; i < filled; ++i)
        if (!chunks[i].done) return of_source(options_.source, std::move(chunks[i].done).error());
      ISTHMUS_CHECK(write(std::span(chunks).first(filled), reader->position()));
      if (options_.progress) options_.progress(reader->file_bytes_read(), source_bytes_);
    }
    last_.source = reader->position();
    return finish();
  }

  // Under their name or under that which they have until then.
  Result<bool> tokens_are_there() const {
    for (const auto part : parts()) {
      ISTHMUS_TRY(const bool old, disk_.exists(paths_[part]));
      ISTHMUS_TRY(const bool fresh, disk_.exists(temporary(paths_[part])));
      if (!old && !fresh) return false;
    }
    return true;
  }

  Result<void> find_where_to_go_on() {
    ISTHMUS_TRY(auto journal, PrepareJournal::open(disk_, journal_path(), task()));
    if (journal) {
      ISTHMUS_TRY(const auto whole, journal->whole());
      ISTHMUS_TRY(const bool there, tokens_are_there());
      if (whole && there) {
        last_ = *whole;
        went_on_ = true;
        return {};
      }
    }
    bool all_there = journal.has_value();
    for (std::size_t i = 0; i < paths_.size(); ++i)
      if (all_there && has(i)) {
        ISTHMUS_TRY(all_there, disk_.exists(temporary(paths_[i])));
      }
    for (std::size_t i = 0; i < paths_.size(); ++i)
      if (has(i)) {
        ISTHMUS_TRY(files_[i], disk_.open(temporary(paths_[i]),
                                          all_there ? Disk::Open::update : Disk::Open::create));
      } else {
        if (!paths_[i].empty()) ISTHMUS_CHECK(disk_.remove(temporary(paths_[i])));
        files_[i] = std::make_unique<NoFile>();
      }
    if (all_there) {
      std::array<File*, kPreparedFiles> files;
      for (std::size_t i = 0; i < files.size(); ++i) files[i] = files_[i].get();
      ISTHMUS_TRY(const auto last, journal->agree(files));
      journal_ = std::move(*journal);
      if (last) {
        last_ = *last;
        went_on_ = true;
      }
    } else {
      ISTHMUS_TRY(journal_, PrepareJournal::create(disk_, journal_path(), task()));
    }
    return {};
  }

  // How many chunks there are; 0 at the end.
  Result<std::size_t> fill(DocumentReader& reader, std::span<Chunk> chunks) {
    std::size_t filled = 0;
    for (bool more = true; more && filled < chunks.size();) {
      auto& chunk = chunks[filled];
      chunk = Chunk();
      for (std::size_t bytes = 0; bytes < kChunkBytes;) {
        auto piece = reader.next();
        if (!piece) return of_source(options_.source, std::move(piece).error());
        more = piece->has_value();
        if (!more) break;
        bytes += (*piece)->text.size() + 1;
        chunk.pieces.push_back(std::move(**piece));
      }
      if (!chunk.pieces.empty()) ++filled;
    }
    return filled;
  }

  Result<void> write(std::span<const Chunk> chunks, const ReadPosition& position) {
    security::Hasher added;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      auto tokens = last_.parts[i % 2].tokens;
      for (const auto& chunk : chunks) {
        const auto& part = chunk.parts[i % 2];
        const auto bytes = i < 2 ? part.tokens : i < 4 ? part.mask : documents_of(part, tokens);
        ISTHMUS_CHECK(files_[i]->write_at(last_.file_bytes[i], bytes));
        added.update(bytes);
        last_.file_bytes[i] += bytes.size();
        tokens += part.counts.tokens;
      }
      ISTHMUS_CHECK(files_[i]->sync());
    }
    for (const auto& chunk : chunks)
      for (std::size_t part = 0; part < 2; ++part) {
        auto& counts = last_.parts[part];
        const auto& more = chunk.parts[part].counts;
        counts.documents += more.documents;
        counts.tokens += more.tokens;
        counts.targets += more.targets;
        counts.text_bytes += more.text_bytes;
      }
    last_.source = position;
    last_.added = added.finish();
    return journal_->add(last_);
  }

  // All that needs room is on disk before the first file changes its name.
  Result<PreparedText> finish() {
    if (layout_.holds_out && last_.parts[kHeldOut].documents == 0)
      return too_few(last_.source.documents);
    for (const auto part : parts()) {
      const auto path = temporary(facts_path(paths_[part]));
      ISTHMUS_TRY(auto file, disk_.open(path, Disk::Open::create));
      ISTHMUS_TRY(const auto facts, facts_of(part));
      ISTHMUS_CHECK(file->write_at(0, bytes_of(to_json(facts))));
      ISTHMUS_CHECK(file->sync());
      ISTHMUS_CHECK(disk_.sync_folder(folder_of(path)));
    }
    auto entry = last_;
    entry.added = security::Hasher().finish();
    entry.whole = true;
    ISTHMUS_CHECK(journal_->add(entry));
    last_ = entry;
    return publish_all();
  }

  Error too_few(std::uint64_t documents) const {
    if (layout_.format == DocumentFormat::json_lines)
      return {ErrorCode::invalid_argument,
              fmt::format("{} has {}: at least {} are needed to hold one out; leave out what is "
                          "held out, and prepare another file for it",
                          options_.source, counted(documents, "record"), kHeldOutPlace + 1)};
    return {ErrorCode::invalid_argument,
            fmt::format("{} has {} (parted by blank lines): at least {} are needed "
                        "to hold one out. A text that is not made of paragraphs can be trained on "
                        "as it is: name it in data.train, and another one in data.held_out",
                        options_.source, counted(documents, "paragraph"), kHeldOutPlace + 1)};
  }

  // Of its list of documents, whether it has its name already or not.
  Result<std::string> documents_digest(Part part) const {
    const auto file = 4 + part;
    if (!has(file)) return std::string();
    ISTHMUS_TRY(const bool waits, disk_.exists(temporary(paths_[file])));
    ISTHMUS_TRY(const auto list,
                disk_.open(waits ? temporary(paths_[file]) : paths_[file], Disk::Open::read));
    ISTHMUS_TRY(const auto digest, sampled_digest(*list, last_.file_bytes[file]));
    return digest.hex();
  }

  Result<TokenFileFacts> facts_of(Part part) const {
    const auto& counts = last_.parts[part];
    const auto& tokenizer = layout_.tokenizer != nullptr ? *layout_.tokenizer : *bytes_;
    ISTHMUS_TRY(auto digest, documents_digest(part));
    return TokenFileFacts{
        .width = layout_.width,
        .tokenizer = tokenizer.digest().hex(),
        .tokenizer_name = tokenizer.description(),
        .tokens = counts.tokens,
        .targets = counts.targets,
        .documents = counts.documents,
        .text_bytes = counts.text_bytes,
        .has_mask = layout_.has_mask(),
        .has_documents = layout_.has_documents(),
        .documents_digest = std::move(digest),
        .source = options_.source,
        .split = !layout_.holds_out
                     ? "all documents"
                     : fmt::format("documents i, counted from 0, with i % {} {} {}", kHeldOutPeriod,
                                   part == kHeldOut ? "==" : "!=", kHeldOutPlace)};
  }

  // May have been begun before, and stopped anywhere.
  Result<PreparedText> publish_all() {
    for (const auto part : parts()) ISTHMUS_CHECK(publish(part));
    ISTHMUS_CHECK(disk_.remove(journal_path()));
    PreparedText prepared{.documents = last_.source.documents, .went_on = went_on_};
    ISTHMUS_TRY(prepared.train, facts_of(kTrain));
    ISTHMUS_TRY(prepared.held_out, facts_of(kHeldOut));
    return prepared;
  }

  // The tokens get their name last, and those that had it lose it first: what lies beside tokens
  // that are there is theirs.
  Result<void> publish(Part part) {
    const auto& path = paths_[part];
    ISTHMUS_TRY(const bool is_new, disk_.exists(temporary(path)));
    if (!is_new) return {};  // it has its name already
    ISTHMUS_CHECK(disk_.remove(path));
    ISTHMUS_CHECK(disk_.sync_folder(folder_of(path)));
    for (const auto beside : {part + 2, part + 4})
      ISTHMUS_CHECK(has(beside) ? publish_file(paths_[beside])
                                : disk_.remove(paths_[beside]));  // of the tokens before
    ISTHMUS_CHECK(publish_file(facts_path(path)));
    ISTHMUS_CHECK(disk_.sync_folder(folder_of(path)));
    ISTHMUS_CHECK(publish_file(path));
    return disk_.sync_folder(folder_of(path));
  }

  Result<void> publish_file(const std::string& path) {
    ISTHMUS_TRY(const bool is_new, disk_.exists(temporary(path)));
    return is_new ? disk_.rename(temporary(path), path) : Result<void>();
  }

  void remove_new() {
    for (std::size_t i = 0; i < files_.size(); ++i) {
      files_[i].reset();
      if (!paths_[i].empty()) (void)disk_.remove(temporary(paths_[i]));
    }
    for (const auto part : parts()) (void)disk_.remove(temporary(facts_path(paths_[part])));
    (void)disk_.remove(journal_path());
  }

  // In place of what is not written.
  class NoFile final : public File {
   public:
    Result<void> read_at(std::uint64_t, std::span<std::byte>) const override { return {}; }
    Result<void> write_at(std::uint64_t, std::span<const std::byte>) override { return {}; }
    Result<void> truncate(std::uint64_t) override { return {}; }
    Result<std::uint64_t> size() const override { return 0; }
    Result<void> sync() override { return {}; }
  };

  Disk& disk_;
  ThreadPool& pool_;
  const PrepareOptions& options_;
  // Of both parts the tokens, then the masks, then where documents begin.
  const std::array<std::string, kPreparedFiles> paths_;
  const std::unique_ptr<Tokenizer> bytes_ = make_byte_tokenizer();
  std::uint64_t source_bytes_ = 0;
  security::Digest source_digest_;
  Layout layout_ = {};
  std::unique_ptr<DiskLock> lock_;
  std::array<std::unique_ptr<File>, kPreparedFiles> files_;
  std::optional<PrepareJournal> journal_;
  PrepareEntry last_;
  bool went_on_ = false;
};

}  // namespace

DocumentFormat format_by_name(const std::string& path) {
  auto name = std::filesystem::path(path);
  for (const std::string_view ending : {".gz", ".zst"})
    if (name.extension() == ending) name.replace_extension();
  const auto ending = name.extension();
  return ending == ".jsonl" || ending == ".ndjson" ? DocumentFormat::json_lines
                                                   : DocumentFormat::text;
}

Result<PreparedText> prepare_text(Disk& disk, ThreadPool& pool, const PrepareOptions& options) {
  return Preparation(disk, pool, options).run();
}

}  // namespace isthmus::runtime
