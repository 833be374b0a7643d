#include "timeline/logged_series.h"

#include <algorithm>
#include <array>

namespace plimsoll {
namespace {

struct FigureKindWords {
  std::string_view name;
  std::string_view label;
};
/// In the order of the enum.
constexpr auto kFigureKindWords = std::to_array<FigureKindWords>({
    {"tensors", "in tensors"},
    {"active", "in tensors or awaited by a stream"},
    {"reserved", "reserved by PyTorch"},
    {"cached", "cached by PyTorch"},
    {"outside", "outside PyTorch"},
    {"device_used", "in use on the card"},
    {"device_free", "free on the card"},
    {"device_total", "of the card"},
    {"device_share", "of the card, in hundredths of a per cent"},
    {"not_tensors", "not in tensors at their peak"},
    {"process", "of one process"},
    {"weights", "taken by loading the model"},
    {"activations", "taken by a trial run"},
    {"kv_cache", "for keys and values"},
    {"graphs", "taken by CUDA graphs"},
    {"allowed", "that the server may use"},
    {"engine_freed", "let go of by a sleeping engine"},
    {"engine_kept", "still in use beside a sleeping engine"},
    {"host", "of the host"},
    {"host_total", "that the host has"},
    {"formula", "by a formula"},
    {"retries", "retries of the allocator"},
    {"ooms", "out-of-memory errors"},
    {"kv_tokens", "tokens of cache"},
    {"batch", "samples in a pass"},
    {"length", "long"},
    {"throughput", "tokens a second"},
});

}  // namespace

std::string_view FigureKindName(FigureKind counted) {
  return kFigureKindWords[static_cast<std::size_t>(counted)].name;
}

std::string_view FigureKindLabel(FigureKind counted) {
  return kFigureKindWords[static_cast<std::size_t>(counted)].label;
}

bool IsBytes(FigureKind counted) {
  return counted < FigureKind::kRetries && counted != FigureKind::kDeviceShare;
}

bool TellsUse(FigureKind kind) {
  return kind < FigureKind::kKvTokens && kind != FigureKind::kDeviceTotal &&
         kind != FigureKind::kHostTotal && kind != FigureKind::kAllowed;
}

std::string_view FigureSpanName(FigureSpan span) {
  switch (span) {
    case FigureSpan::kNow:
      return "now";
    case FigureSpan::kSinceLine:
      return "peak_since_line";
    case FigureSpan::kSinceStart:
      return "peak_since_start";
    case FigureSpan::kChange:
      return "change";
    case FigureSpan::kAboveEnd:
      return "peak_above_end";
  }
  return "now";
}

void LoggedSeries::Add(const LoggedPoint& point) {
  if (count == 0) first = lowest = highest = point;
  if (point.value < lowest.value) lowest = point;
  if (point.value > highest.value) highest = point;
  last = point;
  ++count;
  if (point.has_step()) {
    first_step = stepped == 0 ? point.step : std::min(first_step, point.step);
    last_step = std::max(last_step, point.step);
    ++stepped;
  }
  points.push_back(point);
  if (points.size() >= kMostPoints) Thin();
}

void LoggedSeries::AddRewritten(const LoggedPoint& point) {
  if (count == 0 || last.step != point.step) return Add(point);
  if (point.value > last.value) last = points.back() = point;
  if (point.value > highest.value) highest = point;
  if (count == 1) first = lowest = last;
}

void LoggedSeries::Thin() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < points.size(); i += 4) {
    const std::size_t end = std::min(points.size(), i + 4);
    std::size_t low = i;
    std::size_t high = i;
    for (std::size_t j = i + 1; j < end; ++j) {
      if (points[j].value < points[low].value) low = j;
      if (points[j].value >= points[high].value) high = j;
    }
    const LoggedPoint lower = points[std::min(low, high)];
    const LoggedPoint upper = points[std::max(low, high)];
    points[kept++] = lower;
    if (low != high) points[kept++] = upper;
  }
  points.resize(kept);
}

}  // namespace plimsoll
