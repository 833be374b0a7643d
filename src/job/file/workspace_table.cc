#include "job/file/workspace_table.h"

#include <algorithm>
#include <charconv>

#include "job/file/layout.h"

namespace plimsoll {
namespace {

constexpr std::int64_t kMostSamples = 1 << 30;
constexpr std::size_t kDirections = 3;
/// About as many bytes has a line.
constexpr std::size_t kLine = 100;

std::string_view NextCell(std::string_view& line, char separator) {
  const std::size_t end = line.find(separator);
  const std::string_view cell = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return cell;
}

/// A whole number from 0 to `most`, and nothing else.
std::optional<std::int64_t> ToInt(std::string_view text, std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < 0 || value > most) return std::nullopt;
  return value;
}

/// "1:100 2:200", the batches rising; nothing where it is anything else.
std::optional<std::vector<WorkspaceTable::Point>> ReadPoints(std::string_view cell) {
  std::vector<WorkspaceTable::Point> points;
  while (!cell.empty()) {
    std::string_view pair = NextCell(cell, ' ');
    const auto batch = ToInt(NextCell(pair, ':'), kMostSamples);
    const auto bytes = ToInt(pair, kMostElements);
    if (!batch || !bytes) return std::nullopt;
    if (*batch <= (points.empty() ? 0 : points.back().batch)) return std::nullopt;
    points.push_back({*batch, *bytes});
  }
  return points;
}

/// What follows the key.
bool IsOfShape(std::string_view line, std::size_t lists) {
  const auto list = ToInt(NextCell(line, '\t'), kMostSamples);
  if (!list || static_cast<std::size_t>(*list) >= lists) return false;
  if (std::count(line.begin(), line.end(), '\t') != kDirections - 1) return false;
  for (std::size_t direction = 0; direction < kDirections; ++direction) {
    if (!ReadPoints(NextCell(line, '\t'))) return false;
  }
  return true;
}

}  // namespace

WorkspaceTable::WorkspaceTable(std::shared_ptr<const std::string> text, Lists batches)
    : text_(std::move(text)), batches_(std::move(batches)) {
  lines_.reserve(text_->size() / kLine);
}

std::optional<WorkspaceTable::Lists> WorkspaceTable::ReadBatches(const Json& json) {
  Lists lists;
  if (!json.is_array()) return std::nullopt;
  for (const Json& list : json.items()) {
    if (!list.is_array()) return std::nullopt;
    std::vector<std::int64_t>& batches = lists.emplace_back();
    for (const Json& number : list.items()) {
      const std::int64_t batch = number.integer().value_or(0);
      if (batch > kMostSamples) return std::nullopt;
      if (batch <= (batches.empty() ? 0 : batches.back())) return std::nullopt;
      batches.push_back(batch);
    }
  }
  return lists;
}

bool WorkspaceTable::Add(std::string_view line) {
  const std::string_view key = NextCell(line, '\t');
  if (!IsOfShape(line, batches_.size())) return false;
  lines_.emplace(key, line);
  return true;
}

WorkspaceTable::Series WorkspaceTable::Find(std::string_view key, std::size_t direction) const {
  const auto found = lines_.find(key);
  if (found == lines_.end()) return {};
  std::string_view line = found->second;
  const std::int64_t list = ToInt(NextCell(line, '\t'), kMostSamples).value_or(0);
  std::string_view cell;
  for (std::size_t d = 0; d <= direction; ++d) cell = NextCell(line, '\t');
  return {.points = ReadPoints(cell).value_or(std::vector<Point>()),
          .batches = &batches_[static_cast<std::size_t>(list)]};
}

}  // namespace plimsoll
