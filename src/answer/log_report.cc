#include "answer/log_report.h"

#include <fmt/format.h>

namespace plimsoll {

std::string SourceText(const FigureSource& source) {
  std::string text;
  if (source.rank) text = fmt::format("rank {}", *source.rank);
  if (source.device) {
    text += fmt::format("{}GPU {}", text.empty() ? "" : ", ", *source.device);
  }
  if (!source.process.empty()) text += (text.empty() ? "" : ", ") + source.process;
  return text;
}

std::string FigureText(const LoggedSeries& series, std::int64_t value) {
  if (series.counts == FigureKind::kDeviceShare)
    return fmt::format("{:.2f} %", double(value) / 100);
  return IsBytes(series.counts) ? FormatBytes(value) : fmt::format("{}", value);
}

std::string PointText(const LoggedPoint& point) {
  return point.has_step() ? fmt::format("at step {} (line {})", point.step, point.line)
                          : fmt::format("in line {}", point.line);
}

}  // namespace plimsoll
