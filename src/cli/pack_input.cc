#include "cli/pack_input.h"

#include <fmt/format.h>

#include <algorithm>

#include "allocator/record/ledger.h"
#include "cli/file_kind.h"
#include "readers/registry.h"

namespace plimsoll {
namespace {

/// A table of buffers begins with a row of names, one of which is size.
bool LooksLikeCsv(std::string_view bytes) {
  const std::string_view first = bytes.substr(0, std::min(bytes.find('\n'), std::size_t{200}));
  const bool json = first.starts_with('{') || first.starts_with('[');
  return !json && first.find(',') != first.npos && first.find("size") != first.npos;
}

Result<PackReport> FromCsv(const Input& input, PackingCsv& csv) {
  Result<PackingCsv> read = ReadPackingCsv(input);
  if (!read) return read.error();
  csv = std::move(*read);
  PackReport report{.ids = csv.ids, .problem = csv.problem};
  if (csv.with_gaps > 0) {
    report.notes.push_back(fmt::format(
        "{} of the buffers have gaps in their lifetimes, which are not used: a lower packing may "
        "exist",
        csv.with_gaps));
  }
  return report;
}

Result<PackReport> FromTrace(const Input& input, PackingCsv& csv) {
  const Result<Recording> recording = Read(input);
  if (!recording) return recording.error();
  const Timeline* timeline = nullptr;
  for (const Timeline& t : recording->timelines) {
    if (timeline == nullptr || t.events.size() > timeline->events.size()) timeline = &t;
  }
  if (timeline == nullptr || timeline->events.empty()) {
    return Error{.message = "it holds no allocations with lifetimes",
                 .hint = "give a memory snapshot with events, or a CSV with id,lower,upper,size"};
  }
  PackReport report{.problem = PackingProblem(*timeline, Follow(*timeline))};
  for (std::size_t i = 0; i < report.problem.buffers.size(); ++i) {
    report.ids.push_back(fmt::format("{}", i));
  }
  csv = {.problem = report.problem, .ids = report.ids};
  return report;
}

/// The sizes of a table have no unit, so its capacity needs none.
Result<std::optional<Bytes>> ReadCapacity(const std::optional<std::string>& text, bool table) {
  if (!text) return std::optional<Bytes>();
  const bool digits = text->find_first_not_of("0123456789") == text->npos;
  Result<Bytes> size = ParseBytes(table && digits ? *text + "B" : *text);
  if (size) return std::optional<Bytes>(*size);
  size.error().message = "--capacity: " + size.error().message;
  return size.error();
}

}  // namespace

Result<PackReport> ReadProblem(const std::string& path,
                               const std::optional<std::string>& capacity_text, PackingCsv& csv) {
  const bool buffers = KindOf(path) == FileKind::kBuffers;
  const Result<std::string> file_of = buffers ? path : RecordFile(path);
  if (!file_of) return file_of.error();
  const std::string& file = *file_of;
  const Result<Input> input = Input::Open(file);
  if (!input) return input.error();
  const bool table = LooksLikeCsv(input->bytes());
  const Result<std::optional<Bytes>> capacity = ReadCapacity(capacity_text, table);
  if (!capacity) return capacity.error();
  Result<PackReport> report = table ? FromCsv(*input, csv) : FromTrace(*input, csv);
  if (!report) {
    if (report.error().file.empty()) report.error().file = file;
    return report;
  }
  report->file = file;
  report->capacity = *capacity;
  return report;
}

}  // namespace plimsoll
