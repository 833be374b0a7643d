#include "packing/csv.h"

#include <string>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "base/printable.h"

namespace plimsoll {
namespace {

enum class Column { kId, kLower, kUpper, kLast, kSize, kAlignment, kGaps, kOther };

struct ColumnName {
  std::string_view name;
  Column column;
};
constexpr std::array<ColumnName, 11> kColumnNames = {{{"id", Column::kId},
                                                      {"buffer_id", Column::kId},
                                                      {"lower", Column::kLower},
                                                      {"start", Column::kLower},
                                                      {"begin", Column::kLower},
                                                      {"upper", Column::kUpper},
                                                      {"end", Column::kLast},
                                                      {"size", Column::kSize},
                                                      {"alignment", Column::kAlignment},
                                                      {"gaps", Column::kGaps},
                                                      {"offset", Column::kOther}}};

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '"'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

/// Splits at commas, except between quotes.
void Split(std::string_view line, std::vector<std::string_view>& fields) {
  fields.clear();
  bool quoted = false;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') quoted = !quoted;
    if (line[i] != ',' || quoted) continue;
    fields.push_back(Trim(line.substr(begin, i - begin)));
    begin = i + 1;
  }
  fields.push_back(Trim(line.substr(begin)));
}

class Reader {
 public:
  explicit Reader(const Input& input) : input_(input), rest_(input.bytes()) {}

  Result<PackingCsv> Run() {
    std::string_view line;
    if (rest_.starts_with("\xef\xbb\xbf")) rest_.remove_prefix(3);  // the mark of UTF-8
    if (!NextLine(line)) {
      return Fail("the file is empty", "the first row names the columns: id,lower,upper,size");
    }
    if (auto error = ReadHeader(line)) return *error;
    while (NextLine(line)) {
      if (auto error = ReadRow(line)) return *error;
    }
    if (auto error = CheckProblem(csv_.problem)) {
      error->file = input_.name();
      return *error;
    }
    return std::move(csv_);
  }

 private:
  /// The next line that is not blank.
  bool NextLine(std::string_view& line) {
    while (!rest_.empty()) {
      const std::size_t end = std::min(rest_.find('\n'), rest_.size());
      line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      ++line_;
      if (!Trim(line).empty()) return true;
    }
    return false;
  }

  Error Fail(std::string message, std::string hint) const {
    return {.message = fmt::format("line {}: {}", std::max<std::size_t>(line_, 1), message),
            .file = input_.name(),
            .hint = std::move(hint)};
  }

  std::optional<Error> ReadHeader(std::string_view line) {
    Split(line, fields_);
    for (const std::string_view field : fields_) {
      Column column = Column::kOther;
      for (const ColumnName& known : kColumnNames) {
        if (field == known.name) column = known.column;
      }
      const auto same = std::find(columns_.begin(), columns_.end(), column);
      if (column != Column::kOther && same != columns_.end()) {
        return Fail(fmt::format("the column '{}' is there twice", Quoted(field)), "keep one");
      }
      columns_.push_back(column);
    }
    const bool has_end = Has(Column::kUpper) || Has(Column::kLast);
    for (const auto& [column, name] :
         {std::pair(Column::kLower, "lower"), std::pair(Column::kSize, "size")}) {
      if (!Has(column)) return MissingColumn(name);
    }
    if (!has_end) return MissingColumn("upper");
    if (Has(Column::kUpper) && Has(Column::kLast)) {
      return Fail("there are both 'upper' and 'end'",
                  "keep one: 'end' is the last moment of a life");
    }
    return std::nullopt;
  }

  Error MissingColumn(std::string_view name) const {
    return Fail(fmt::format("there is no column '{}'", name),
                "the first row names the columns: id,lower,upper,size");
  }

  bool Has(Column column) const {
    return std::find(columns_.begin(), columns_.end(), column) != columns_.end();
  }

  std::optional<Error> ReadRow(std::string_view line) {
    Split(line, fields_);
    if (fields_.size() != columns_.size()) {
      return Fail(fmt::format("{} fields, but the first row names {} columns", fields_.size(),
                              columns_.size()),
                  "write one field for each column");
    }
    Buffer buffer;
    std::string id = std::to_string(csv_.ids.size());
    for (std::size_t i = 0; i < fields_.size(); ++i) {
      if (columns_[i] == Column::kId) id = std::string(fields_[i]);
      if (columns_[i] == Column::kGaps && !fields_[i].empty()) ++csv_.with_gaps;
      if (auto error = ReadNumber(columns_[i], fields_[i], buffer)) return error;
    }
    if (buffer.lower >= buffer.upper) {
      return Fail(fmt::format("the buffer '{}' ends before it begins", Quoted(id)),
                  "'upper' is the first moment after its life");
    }
    csv_.problem.buffers.push_back(buffer);
    csv_.ids.push_back(std::move(id));
    return std::nullopt;
  }

  std::optional<Error> ReadNumber(Column column, std::string_view field, Buffer& buffer) const {
    std::int64_t* target = nullptr;
    if (column == Column::kLower) target = &buffer.lower;
    if (column == Column::kUpper || column == Column::kLast) target = &buffer.upper;
    if (column == Column::kSize) target = &buffer.size;
    // An empty alignment is none.
    if (column == Column::kAlignment && !field.empty()) target = &buffer.alignment;
    if (!target) return std::nullopt;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), *target);
    const bool number = error == std::errc() && end == field.data() + field.size();
    const bool inclusive = column == Column::kLast;
    if (!number || (inclusive && *target == std::numeric_limits<std::int64_t>::max())) {
      return Fail(fmt::format("'{}' is not a whole number", Quoted(field)),
                  "times and sizes are whole numbers without units");
    }
    if (inclusive) ++*target;
    if (target == &buffer.size && *target < 0) {
      return Fail(fmt::format("the size {} is negative", *target), "sizes are 0 or more");
    }
    if (target == &buffer.alignment && *target < 1) {
      return Fail(fmt::format("the alignment {} is below 1", *target), "alignments are 1 or more");
    }
    return std::nullopt;
  }

  /// Short and safe to print.
  static std::string Quoted(std::string_view text) { return Printable(text.substr(0, 40)); }

  const Input& input_;
  std::string_view rest_;
  std::size_t line_ = 0;
  std::vector<Column> columns_;
  std::vector<std::string_view> fields_;
  PackingCsv csv_;
};

/// As it is where that is safe, else between quotes; quotes inside it would end them too soon.
std::string IdField(std::string id) {
  std::erase(id, '"');
  const std::string cell = CsvCell(id);
  const bool plain = cell.size() == id.size() + 2 && cell.compare(1, id.size(), id) == 0;
  return plain && id.find(',') == std::string::npos ? id : cell;
}

}  // namespace

Result<PackingCsv> ReadPackingCsv(const Input& input) { return Reader(input).Run(); }

std::string WritePackingCsv(const PackingCsv& csv, const Packing& packing) {
  const auto& buffers = csv.problem.buffers;
  const bool aligned =
      std::any_of(buffers.begin(), buffers.end(), [](const Buffer& b) { return b.alignment != 1; });
  std::string out =
      aligned ? "id,lower,upper,size,alignment,offset\n" : "id,lower,upper,size,offset\n";
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& b = buffers[i];
    out += fmt::format("{},{},{},{}", IdField(csv.ids[i]), b.lower, b.upper, b.size);
    if (aligned) out += fmt::format(",{}", b.alignment);
    out += fmt::format(",{}\n", packing.offsets[i]);
  }
  return out;
}

}  // namespace plimsoll
