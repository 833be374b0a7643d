// torch.profiler's export_memory_timeline, which comes in three forms:
//   .json      [[time, …], [[0, parameters, optimizer state, …, unattributed], …]], microseconds
//   .raw.json  [[time, action, bytes, category], …], nanoseconds; -1 is "before the recording".
//              Bytes are signed: what each record adds to its category. The action (1 existed
//              before, 2 created, 3 a new version, 4 destroyed) tells nothing beyond that: a new
//              version is two records, one out of the old category and one into the new.
//   .html      a picture, which cannot be read
#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "files/json_visit.h"
#include "files/read_budget.h"
#include "readers/profiler/profiler.h"
#include "timeline/limits.h"

namespace plimsoll {
namespace {

constexpr std::size_t kColumns = kProfilerCategories.size();
/// The .json form begins each row with a zero, for the plot's sake.
constexpr std::size_t kRowLength = kColumns + 1;
constexpr std::size_t kRecordLength = 4;
constexpr std::int64_t kBeforeRecording = -1;
constexpr std::size_t kHtmlHead = 4096;

constexpr std::string_view kNoLine = " \t\r\n";

using Sizes = std::array<Bytes, kColumns>;
/// What becomes of a row: a sample with its figures.
constexpr std::size_t kSampleBytes = sizeof(CategorySample) + sizeof(Sizes);

struct RawRecord {
  std::int64_t time_ns = 0;
  Bytes bytes = 0;
  std::size_t category = 0;
};

bool Sane(Bytes size) { return size >= -kLargestSize && size <= kLargestSize; }

/// Reads both JSON forms: which one it is shows only in the second list.
class TimelineVisitor final : public JsonVisitor {
 public:
  explicit TimelineVisitor(ReadBudget& budget) : budget_(budget) {}

  void Open(bool object) override {
    ++depth_;
    if (depth_ == 2) ++lists_;
    if (depth_ == 3 && lists_ == 2) sampled = true;
    if (depth_ == 2 || depth_ == 3) row_.clear();
    clean_ = !object && depth_ <= 3;
  }
  void Close() override {
    if (depth_ == 3 && lists_ == 2) {
      EndRow();
    } else if (depth_ == 2 && lists_ == 1) {
      AddRecord();  // if it turns out to be one
      times = std::move(row_);
    } else if (depth_ == 2 && !sampled) {
      if (!AddRecord()) ++strange;
    }
    row_.clear();
    clean_ = true;
    --depth_;
  }
  void Key(std::string_view) override {}
  bool Enough() const override { return budget_.spent(); }
  void Scalar(const JsonScalar& value) override {
    if (depth_ < 2 || depth_ > 3) return;
    const std::optional<std::int64_t> number = value.AsInteger();
    // A row that is far too long is wrong anyway; the list of times may have any length.
    const bool wanted = (depth_ == 2 && lists_ == 1) || row_.size() <= kRowLength;
    if (number && wanted && budget_.Take(sizeof(std::int64_t))) row_.push_back(*number);
    if (!number) clean_ = false;
  }

  bool raw() const { return !sampled && !records.empty(); }

  bool sampled = false;  // the .json form
  std::vector<std::int64_t> times;
  std::vector<Sizes> rows;
  std::vector<RawRecord> records;
  std::int64_t strange = 0;

 private:
  void EndRow() {
    // A row that cannot be used keeps its place, so that the others keep their times.
    Sizes sizes{};
    if (clean_ && row_.size() == kRowLength && std::all_of(row_.begin(), row_.end(), Sane)) {
      std::copy(row_.begin() + 1, row_.end(), sizes.begin());
    } else {
      ++strange;
      if (!rows.empty()) sizes = rows.back();
    }
    if (budget_.Take(sizeof(Sizes) + kSampleBytes)) rows.push_back(sizes);
  }
  bool AddRecord() {
    if (!clean_ || row_.size() != kRecordLength || !Sane(row_[2])) return false;
    if (row_[3] < 0 || row_[3] >= static_cast<std::int64_t>(kColumns)) return false;
    if (!budget_.Take(sizeof(RawRecord) + kSampleBytes)) return false;
    records.push_back({row_[0], row_[2], static_cast<std::size_t>(row_[3])});
    return true;
  }

  ReadBudget& budget_;
  std::size_t depth_ = 0;
  std::size_t lists_ = 0;  // lists met directly inside the outermost
  bool clean_ = true;      // only numbers in the innermost list
  std::vector<std::int64_t> row_;
};

CategorySample Sample(TimeUs time, const Sizes& sizes) {
  return {.time_us = time, .bytes = {sizes.begin(), sizes.end()}};
}

std::vector<CategorySample> FromRows(const TimelineVisitor& read, std::int64_t& strange) {
  const std::size_t n = std::min(read.times.size(), read.rows.size());
  strange += static_cast<std::int64_t>(std::max(read.times.size(), read.rows.size()) - n);
  std::vector<CategorySample> samples;
  samples.reserve(n);
  for (std::size_t i = 0; i < n; ++i) {
    const TimeUs time = std::clamp(read.times[i], -kLatestTime, kLatestTime);
    samples.push_back(Sample(time, read.rows[i]));
  }
  return samples;
}

std::vector<CategorySample> Integrate(std::vector<RawRecord> records, std::int64_t& strange) {
  std::int64_t begin = INT64_MAX;
  for (const RawRecord& r : records) {
    if (r.time_ns != kBeforeRecording) begin = std::min(begin, r.time_ns);
  }
  if (begin == INT64_MAX) begin = 0;
  for (RawRecord& r : records) {
    if (r.time_ns == kBeforeRecording) r.time_ns = begin;
  }
  std::stable_sort(records.begin(), records.end(),
                   [](const RawRecord& a, const RawRecord& b) { return a.time_ns < b.time_ns; });
  Sizes sizes{};
  std::vector<CategorySample> samples;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Bytes sum = sizes[records[i].category] + records[i].bytes;
    if (Sane(sum)) {
      sizes[records[i].category] = sum;
    } else {
      ++strange;
    }
    const TimeUs time = records[i].time_ns / 1000;
    // One sample a microsecond, as the .json form has it.
    if (i + 1 < records.size() && records[i + 1].time_ns / 1000 == time) continue;
    samples.push_back(Sample(time, sizes));
  }
  return samples;
}

bool IsHtmlPicture(std::string_view bytes) {
  const std::string_view head = bytes.substr(0, kHtmlHead);
  return head.find("<html") != std::string_view::npos &&
         head.find("Memory Timeline") != std::string_view::npos &&
         head.find("data:image/png") != std::string_view::npos;
}

}  // namespace

bool RecogniseMemoryTimeline(std::string_view bytes) {
  const auto first = bytes.find_first_not_of(kNoLine);
  if (first == std::string_view::npos) return false;
  if (bytes[first] == '<') return IsHtmlPicture(bytes);
  // "[[" and a number: a snapshot's list holds objects.
  if (bytes[first] != '[') return false;
  const auto second = bytes.find_first_not_of(kNoLine, first + 1);
  if (second == std::string_view::npos || bytes[second] != '[') return false;
  const auto third = bytes.find_first_not_of(kNoLine, second + 1);
  return third != std::string_view::npos &&
         std::string_view("-0123456789]").find(bytes[third]) != std::string_view::npos;
}

Result<Recording> ReadMemoryTimeline(const Input& input) {
  if (IsHtmlPicture(input.bytes())) {
    return Error{.message = "this memory timeline is a picture (PNG in HTML) without figures",
                 .file = input.name(),
                 .hint =
                     "give export_memory_timeline a name that ends in .json or .raw.json.gz, or "
                     "record a snapshot with torch.cuda.memory._dump_snapshot"};
  }
  ReadBudget budget(input);
  TimelineVisitor read(budget);
  if (auto error = VisitJson(input, read)) return *error;
  Recording recording;
  recording.file = input.name();
  std::int64_t strange = read.strange;
  CategoryTimeline categories;
  if (read.raw()) {
    recording.format = "torch.profiler memory timeline (raw)";
    categories.samples = Integrate(std::move(read.records), strange);
  } else if (read.sampled) {
    recording.format = "torch.profiler memory timeline";
    categories.samples = FromRows(read, strange);
  }
  if (categories.samples.empty()) {
    return Error{.message = "the memory timeline holds no samples",
                 .file = input.name(),
                 .offset = 0,
                 .hint = "name the GPU in export_memory_timeline(path, device=\"cuda:0\")"};
  }
  if (strange > 0) recording.skipped["samples of another shape"] = strange;
  recording.categories = std::move(categories);
  return recording;
}

}  // namespace plimsoll
