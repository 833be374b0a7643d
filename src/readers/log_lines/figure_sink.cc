#include "readers/log_lines/figure_sink.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace plimsoll {
namespace {

/// No log of a real run has so many sources; a hostile one must not cost more.
constexpr std::size_t kMostSeries = 4096;
constexpr std::size_t kMostWaiting = 4096;
constexpr int kMostRanksOfCards = 4096;
/// Of all series together: ten megabytes.
constexpr std::size_t kMostPointsInAll = 400'000;
constexpr std::size_t kFewPoints = 64;

/// Of whoever prints lines.
std::uint64_t HashOf(std::string_view program, std::optional<int> rank, std::string_view process) {
  const std::uint64_t hash = MixHash(HashBytes(program), HashBytes(process));
  return MixHash(hash, static_cast<std::uint64_t>(rank.value_or(-1)));
}

std::uint64_t HashOf(std::string_view program, const FigureField& field, const FigurePlace& place) {
  std::uint64_t hash = HashOf(program, place.rank, place.process);
  hash = MixHash(hash, HashBytes(field.name));
  hash = MixHash(hash, HashBytes(place.phase));
  hash = MixHash(hash, static_cast<std::uint64_t>(field.counts));
  return MixHash(hash, static_cast<std::uint64_t>(place.device.value_or(-1)));
}

bool Same(const LoggedSeries& series, std::string_view program, const FigureField& field,
          const FigurePlace& place) {
  const FigureSource& source = series.source;
  return series.counts == field.counts && series.span == field.span && source.rank == place.rank &&
         source.device == place.device && source.field == field.name &&
         source.phase == place.phase && source.process == place.process &&
         source.program == program;
}

/// In bytes, or the count itself; nothing where no machine has it.
std::optional<std::int64_t> Scaled(double value, double factor) {
  const double scaled = value * factor;
  constexpr double kMost = 1e16;
  if (!std::isfinite(scaled) || std::abs(scaled) > kMost) return {};
  return static_cast<std::int64_t>(std::llround(scaled));
}

}  // namespace

void FigureSink::Begin(std::string_view program, const FigureLine& line, std::size_t number) {
  program_ = program;
  line_ = &line;
  number_ = static_cast<std::int64_t>(number);
}

/// A log prints the same few fields again and again.
LoggedSeries* FigureSink::Find(const FigureField& field, const FigurePlace& place) {
  const auto name = reinterpret_cast<std::uintptr_t>(field.name.data());
  const auto rank = static_cast<std::uint64_t>(place.rank.value_or(0));
  std::size_t& recent = recent_[(name + rank * 31 + place.phase.size()) % recent_.size()];
  if (recent < series_.size() && Same(series_[recent], program_, field, place)) {
    return &series_[recent];
  }
  LoggedSeries* const series = FindAnywhere(field, place);
  if (series != nullptr) recent = static_cast<std::size_t>(series - series_.data());
  return series;
}

LoggedSeries* FigureSink::FindAnywhere(const FigureField& field, const FigurePlace& place) {
  std::uint64_t hash = HashOf(program_, field, place);
  for (;; ++hash) {
    const auto found = index_.find(hash);
    if (found == index_.end()) break;
    LoggedSeries& series = series_[found->second];
    if (Same(series, program_, field, place)) return &series;
  }
  if (series_.size() >= kMostSeries) {
    ++left_out_;
    return nullptr;
  }
  index_.emplace(hash, series_.size());
  LoggedSeries& fresh = series_.emplace_back();
  fresh.source = {.program = std::string(program_),
                  .field = std::string(field.name),
                  .phase = std::string(place.phase),
                  .rank = place.rank,
                  .device = place.device,
                  .process = std::string(place.process)};
  fresh.counts = field.counts;
  fresh.span = field.span;
  return &fresh;
}

void FigureSink::Store(LoggedSeries& series, const LoggedPoint& point, std::int64_t half) {
  series.half_unit = std::max(series.half_unit, half);
  const std::size_t before = series.points.size();
  if (line_->rewritten && point.has_step()) {
    series.AddRewritten(point);
  } else {
    series.Add(point);
  }
  series.folded += line_->folded;
  points_ = points_ + series.points.size() - before;
  if (points_ > kMostPointsInAll) KeepBounded();
}

void FigureSink::KeepBounded() {
  points_ = 0;
  for (LoggedSeries& series : series_) {
    if (series.points.size() > kFewPoints) series.Thin();
    points_ += series.points.size();
  }
}

void FigureSink::Put(const FigureField& field, const Printed& printed, double factor,
                     const FigurePlace& place) {
  const std::optional<std::int64_t> value = Scaled(printed.value, factor);
  if (!value) return;
  FigurePlace whose = place;
  if (!whose.rank) whose.rank = line_->rank;
  if (whose.process.empty() && !whose.rank) whose.process = line_->process;
  ++figures_;
  if (whose.step && !waiting_.empty()) TellStep(*whose.step);
  LoggedSeries* const series = Find(field, whose);
  if (series == nullptr) return;
  // A whole number of bytes or a count is exact.
  const std::int64_t half = factor == kOnes ? 0 : Scaled(printed.half, factor).value_or(0);
  Store(*series, {whose.step.value_or(LoggedPoint::kNoStep), *value, number_}, half);
}

void FigureSink::PutBeforeStep(const FigureField& field, const Printed& printed, double factor) {
  const std::optional<std::int64_t> value = Scaled(printed.value, factor);
  if (!value || waiting_count_ >= kMostWaiting) return;
  ++figures_;
  FigureSource source{.program = std::string(program_),
                      .field = std::string(field.name),
                      .phase = {},
                      .rank = line_->rank,
                      .device = {},
                      .process = line_->rank ? std::string() : std::string(line_->process)};
  const std::uint64_t teller = HashOf(program_, source.rank, source.process);
  waiting_[teller].push_back({field, std::move(source), {LoggedPoint::kNoStep, *value, number_}});
  ++waiting_count_;
}

void FigureSink::TellStep(std::int64_t step) {
  const std::string_view process = line_->rank ? std::string_view() : line_->process;
  const auto found = waiting_.find(HashOf(program_, line_->rank, process));
  if (found == waiting_.end()) return;
  waiting_count_ -= std::erase_if(found->second, [&](const Waiting& waiting) {
    if (waiting.source.program != program_ || waiting.source.rank != line_->rank ||
        waiting.source.process != process) {
      return false;
    }
    LoggedSeries* const series =
        Find(waiting.field, {.rank = waiting.source.rank, .process = waiting.source.process});
    if (series != nullptr) {
      LoggedPoint point = waiting.point;
      point.step = step;
      Store(*series, point, waiting.half);
    }
    return true;
  });
  if (found->second.empty()) waiting_.erase(found);
}

void FigureSink::PutWhole(const Printed& part, double factor, const Printed& percent,
                          const FigurePlace& place) {
  if (part.value <= 0 || percent.value <= 0 || percent.value > 100) return;
  const double share = percent.value / 100;
  const double off = part.half / part.value + percent.half / percent.value;
  // One per cent is enough to know a card by; less is no use.
  if (off > 0.01) return;
  // Nearly every line of a long log tells it again, and hardly any better.
  const std::optional<int> rank = place.rank ? place.rank : line_->rank;
  if (rank && *rank < kMostRanksOfCards) {
    const auto at = static_cast<std::size_t>(*rank);
    if (best_share_.size() <= at) best_share_.resize(at + 1, 1.0);
    if (off >= best_share_[at]) return;
    best_share_[at] = off;
  }
  const std::optional<std::int64_t> whole = Scaled(part.value / share, factor);
  if (!whole) return;
  FigurePlace whose{
      .phase = {}, .rank = place.rank, .device = place.device, .process = place.process};
  if (!whose.rank) whose.rank = line_->rank;
  if (whose.process.empty() && !whose.rank) whose.process = line_->process;
  LoggedSeries* const series = Find({"of its percentage", FigureKind::kDeviceTotal}, whose);
  if (series == nullptr) return;
  const auto half = static_cast<std::int64_t>(off * double(*whole));
  ++series->count;
  if (!series->points.empty() && series->half_unit <= half) return;
  const LoggedPoint point{place.step.value_or(LoggedPoint::kNoStep), *whole, number_};
  series->inferred = true;
  series->half_unit = half;
  points_ += series->points.empty() ? 1 : 0;
  series->points.assign(1, point);
  series->first = series->last = series->lowest = series->highest = point;
}

std::vector<LoggedSeries> FigureSink::Take() && {
  // Warnings behind the last step that was printed.
  const FigureLine none;
  std::vector<Waiting> left;
  for (auto& [teller, all] : waiting_) std::ranges::move(all, std::back_inserter(left));
  std::ranges::stable_sort(left, {}, [](const Waiting& waiting) { return waiting.point.line; });
  for (const Waiting& waiting : left) {
    line_ = &none;
    program_ = waiting.source.program;
    LoggedSeries* const series =
        Find(waiting.field, {.rank = waiting.source.rank, .process = waiting.source.process});
    if (series != nullptr) Store(*series, waiting.point, waiting.half);
  }
  return std::move(series_);
}

}  // namespace plimsoll
