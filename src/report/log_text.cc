#include "report/log_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/printable.h"
#include "report/format/json_values.h"
#include "report/format/table.h"

namespace plimsoll {
namespace {

constexpr std::size_t kMostLogRows = 14;
constexpr std::size_t kMostCurves = 16;
constexpr std::size_t kCurveWidth = 48;

bool IsSetting(const LoggedSeries& series) {
  return series.counts == FigureKind::kBatch || series.counts == FigureKind::kLength;
}

/// Series that only rank, card and process tell apart, in one row.
struct LogRow {
  std::vector<const LoggedSeries*> series;
  std::int64_t count = 0;
  const LoggedSeries* highest = nullptr;
};

/// In the order in which they appear in the log.
std::vector<LogRow> RowsOf(const LogReport& log) {
  std::vector<LogRow> rows;
  std::map<std::tuple<std::string, std::string, std::string>, std::size_t> index;
  for (const LoggedSeries& series : log.series) {
    // The card's size by a percentage is told where it is used, the job's batch below.
    if (series.inferred || IsSetting(series) || series.counts == FigureKind::kThroughput) continue;
    const auto [at, fresh] = index.emplace(
        std::tuple(series.source.program, series.source.field, series.source.phase), rows.size());
    if (fresh) rows.emplace_back();
    LogRow& row = rows[at->second];
    row.series.push_back(&series);
    row.count += series.count;
    if (row.highest == nullptr || series.highest.value > row.highest->highest.value) {
      row.highest = &series;
    }
  }
  return rows;
}

std::string_view SpanText(FigureSpan span) {
  switch (span) {
    case FigureSpan::kNow:
      return "";
    case FigureSpan::kSinceLine:
      return ", peak, reset each time";
    case FigureSpan::kSinceStart:
      return ", peak since the start";
    case FigureSpan::kChange:
      return ", difference";
    case FigureSpan::kAboveEnd:
      return ", peak above the end";
  }
  return "";
}

std::string WhereHighest(const LoggedSeries& series) {
  std::string text = series.highest.has_step() ? fmt::format("step {}", series.highest.step)
                                               : fmt::format("line {}", series.highest.line);
  if (const std::string source = SourceText(series.source); !source.empty()) text += ", " + source;
  return text;
}

void WriteFigures(Writer& w, const LogReport& log) {
  Table table({{.heading = "figure"},
               {.heading = "first", .right = true},
               {.heading = "last", .right = true},
               {.heading = "highest", .right = true},
               {.heading = "times", .right = true, .may_go = true},
               {.heading = "where", .wraps = true}});
  const std::vector<LogRow> rows = RowsOf(log);
  for (std::size_t i = 0; i < rows.size() && i < kMostLogRows; ++i) {
    const LoggedSeries& series = *rows[i].highest;
    table.Row({Printable(series.source.field), FigureText(series, series.first.value),
               FigureText(series, series.last.value), FigureText(series, series.highest.value),
               fmt::format("{}", rows[i].count), Printable(WhereHighest(series))});
    std::string under = fmt::format("{}: {}{}", series.source.program,
                                    FigureKindLabel(series.counts), SpanText(series.span));
    if (!series.source.phase.empty()) under += fmt::format("; \"{}\"", series.source.phase);
    table.Under(Printable(under));
  }
  table.WriteTo(w);
  if (rows.size() > kMostLogRows) {
    w.Line(w.Dim(fmt::format("  … {} more with --json", rows.size() - kMostLogRows)));
  }
}

/// The highest of each part of a series, as blocks of eight heights.
std::string Curve(const LoggedSeries& series, std::int64_t low, std::int64_t high,
                  std::size_t width) {
  constexpr std::string_view kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const std::size_t parts = std::min(width, series.points.size());
  std::string curve;
  for (std::size_t i = 0; i < parts; ++i) {
    const std::size_t from = i * series.points.size() / parts;
    const std::size_t to = std::max(from + 1, (i + 1) * series.points.size() / parts);
    std::int64_t most = series.points[from].value;
    for (std::size_t j = from; j < to; ++j) most = std::max(most, series.points[j].value);
    const double share = high > low ? double(most - low) / double(high - low) : 0;
    curve += kBlocks[static_cast<std::size_t>(std::clamp(std::lround(share * 7), 0L, 7L))];
  }
  return curve;
}

/// The series that the answer speaks of, a line for each rank on one scale.
void WriteCurves(Writer& w, const LogReport& log) {
  const std::size_t shown =
      !log.growth.empty() ? log.growth.front().series : log.highest.value_or(log.series.size());
  if (shown >= log.series.size()) return;
  const FigureSource& own = log.series[shown].source;
  std::vector<const LoggedSeries*> ranks;
  for (const LoggedSeries& series : log.series) {
    const FigureSource& its = series.source;
    if (its.program == own.program && its.field == own.field && its.phase == own.phase) {
      ranks.push_back(&series);
    }
  }
  std::ranges::stable_sort(ranks, {}, [](const LoggedSeries* series) {
    return std::tuple(series->source.rank.value_or(-1), series->source.device.value_or(-1));
  });
  std::int64_t low = log.series[shown].lowest.value;
  std::int64_t high = log.series[shown].highest.value;
  for (const LoggedSeries* series : ranks) {
    low = std::min(low, series->lowest.value);
    high = std::max(high, series->highest.value);
  }
  if (log.series[shown].points.size() < 3) return;
  const LoggedSeries& series = log.series[shown];
  w.Wrapped(Printable(fmt::format("{}'s \"{}\"{}, from {} to {}:", own.program, own.field,
                                  own.phase.empty() ? "" : ", \"" + own.phase + "\"",
                                  FigureText(series, low), FigureText(series, high))),
            "  ", "  ");
  for (std::size_t i = 0; i < ranks.size() && i < kMostCurves; ++i) {
    const std::string name = SourceText(ranks[i]->source);
    w.Line(fmt::format("    {}{}", name.empty() ? "" : PadRight(Printable(name), 8) + " ",
                       Curve(*ranks[i], low, high, kCurveWidth)));
  }
  if (ranks.size() > kMostCurves) {
    w.Line(w.Dim(fmt::format("    … {} more with --json", ranks.size() - kMostCurves)));
  }
}

Json StepOrNull(const LoggedPoint& point) {
  return point.has_step() ? Json(point.step) : Json(nullptr);
}

Json PointJson(const LoggedPoint& point) {
  return {{"step", StepOrNull(point)}, {"value", point.value}, {"line", point.line}};
}

Json SeriesJson(const LoggedSeries& series) {
  Json points = Json::array();
  for (const LoggedPoint& point : series.points) {
    Json row = Json::array();
    row.push_back(StepOrNull(point));
    row.push_back(point.value);
    row.push_back(point.line);
    points.push_back(std::move(row));
  }
  return {{"program", series.source.program},
          {"field", series.source.field},
          {"counts", FigureKindName(series.counts)},
          {"of", FigureSpanName(series.span)},
          {"phase", series.source.phase},
          {"rank", OrNull(series.source.rank)},
          {"device", OrNull(series.source.device)},
          {"process", series.source.process},
          {"half_unit", series.half_unit},
          {"inferred", series.inferred},
          {"folded", series.folded},
          {"count", series.count},
          {"first", PointJson(series.first)},
          {"last", PointJson(series.last)},
          {"lowest", PointJson(series.lowest)},
          {"highest", PointJson(series.highest)},
          {"points", std::move(points)}};
}

Json GrowthJson(const LoggedGrowth& growth) {
  return {{"series", growth.series},
          {"rate", static_cast<std::int64_t>(std::llround(growth.rate))},
          {"by", growth.by_step ? "step" : "line"},
          {"from", PointJson(growth.from)},
          {"to", PointJson(growth.to)},
          {"points", growth.points},
          {"full_at", OrNull(growth.full_at)}};
}

}  // namespace

void WriteLog(Writer& w, const LogReport& log) {
  if (log.series.empty()) return;
  std::string heading = "Memory in the log";
  if (log.first_step && *log.first_step != *log.last_step) {
    heading += fmt::format(" (steps {} to {})", *log.first_step, *log.last_step);
  }
  w.Heading(heading);
  WriteFigures(w, log);
  WriteCurves(w, log);
  std::string settings;
  for (const LoggedSeries& series : log.series) {
    if (!IsSetting(series)) continue;
    settings += fmt::format("{}{} {} (line {})", settings.empty() ? "" : ", ", series.source.field,
                            series.last.value, series.last.line);
  }
  if (!settings.empty()) w.Wrapped(Printable(settings), "  ", "  ");
  for (const std::string& note : log.notes) w.Wrapped(Printable(note), "  - ", "    ");
}

Json LogJson(const LogReport& log) {
  Json series = Json::array();
  for (const LoggedSeries& each : log.series) series.push_back(SeriesJson(each));
  Json growth = Json::array();
  for (const LoggedGrowth& each : log.growth) growth.push_back(GrowthJson(each));
  return {{"first_step", OrNull(log.first_step)},
          {"last_step", OrNull(log.last_step)},
          {"steps", log.steps},
          {"highest", OrNull(log.highest)},
          {"capacity", OrNull(log.capacity)},
          {"capacity_inferred", log.capacity_inferred},
          {"outside", OrNull(log.outside)},
          {"left", OrNull(log.left)},
          {"growth", std::move(growth)},
          {"series", std::move(series)},
          {"notes", log.notes}};
}

}  // namespace plimsoll
