#include "job/rules/workspace_lookup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "job/file/layout.h"

namespace plimsoll {
namespace {

/// A batch so many times the largest of a table is beyond reach.
constexpr std::int64_t kFurthest = 4;

/// The card on which cuDNN's answers were compared with what convolutions took: 44,231
/// direction-calls. Of k×k 99.91 % took at most 2 % and 64 KiB more. 1×1 may go to cuBLASLt, which
/// splits sums as it sees fit; 99.86 % took at most 8 MiB more than that.
constexpr std::string_view kCheckedOn = "H200";
constexpr Bytes kCounters = 64 * kKiB;
constexpr Bytes kSplitProducts = 8 * kMiB;

using Point = WorkspaceTable::Point;

/// As docs/formats/calibration.md has it, a volume with its depth folded into the height.
std::string FoldedKey(const ConvShape& s, std::string_view dtype) {
  return fmt::format("{} {} {},{},{} {},{},{} {},{} {},{} {},{} {}{}", dtype,
                     s.channels_last ? "nhwc" : "nchw", s.c, s.h, s.w, s.k, s.kh, s.kw, s.stride_h,
                     s.stride_w, s.pad_h, s.pad_w, s.dilation_h, s.dilation_w, s.groups,
                     s.transposed ? " transposed" : "");
}

/// Three sizes for two: with the depth in the height, other volumes may have the same key.
std::string VolumeKey(const ConvShape& s, std::string_view dtype) {
  const ConvVolume& v = *s.volume;
  return fmt::format("{} ncdhw {},{} {},{} {} {} {} {}{}", dtype, s.c, fmt::join(v.input, ","), s.k,
                     fmt::join(v.kernel, ","), fmt::join(v.stride, ","), fmt::join(v.padding, ","),
                     fmt::join(v.dilation, ","), s.groups, s.transposed ? " transposed" : "");
}

WorkspaceTable::Series SeriesOf(const WorkspaceTable& table, const ConvShape& shape,
                                std::string_view dtype, ConvDirection direction) {
  const auto cell = static_cast<std::size_t>(direction);
  if (shape.volume) {
    WorkspaceTable::Series series = table.Find(VolumeKey(shape, dtype), cell);
    if (!series.points.empty()) return series;
  }
  return table.Find(FoldedKey(shape, dtype), cell);
}

WorkspaceTable::Series SeriesOf(const WorkspaceTable& table, const ConvShape& shape,
                                ConvDirection direction) {
  if (shape.element_bytes == 4) return SeriesOf(table, shape, "float32", direction);
  if (shape.element_bytes != 2) return {};
  // fp16 has a line of its own only where it differs.
  if (shape.is_fp16) {
    WorkspaceTable::Series series = SeriesOf(table, shape, "float16", direction);
    if (series.batches) return series;
  }
  return SeriesOf(table, shape, "bfloat16", direction);
}

Bytes OnLine(const Point& a, const Point& b, std::int64_t batch) {
  if (a.batch == b.batch) return a.bytes;
  const double share = double(batch - a.batch) / double(b.batch - a.batch);
  return a.bytes + static_cast<Bytes>(std::floor(share * double(b.bytes - a.bytes)));
}

/// As if it were so much for each of the batch: what the same engine takes at another batch, at
/// most where that is larger.
Bytes Grown(const Point& point, std::int64_t batch) {
  if (point.batch <= 0) return point.bytes;
  const double bytes = double(point.bytes) * double(batch) / double(point.batch);
  return static_cast<Bytes>(std::clamp(bytes, 0.0, double(kMostElements)));
}

/// At a batch that was measured: points on a line with their neighbours are left out.
Point PointAt(const std::vector<Point>& points, std::int64_t batch) {
  const auto after = std::lower_bound(points.begin(), points.end(), batch,
                                      [](const Point& p, std::int64_t n) { return p.batch < n; });
  if (after == points.end()) return points.back();
  if (after == points.begin() || after->batch == batch) return *after;
  return {batch, OnLine(*std::prev(after), *after, batch)};
}

/// cuDNN picks an engine by the batch, and somewhere between two measured batches it may pick
/// another: then no line through them says what it takes. The range goes up to what any engine of
/// the two measured batches on either side takes here. Each of 118,089 measured batches from 8 on
/// left out in turn, this is exceeded in 0.6 % (the larger neighbour as it is: in 2.2 %).
Workspace BetweenMeasured(const std::vector<Point>& points,
                          const std::vector<std::int64_t>& measured, std::int64_t batch) {
  const auto above = std::lower_bound(measured.begin(), measured.end(), batch);
  const Bytes on_line = PointAt(points, batch).bytes;
  if (above == measured.begin() || above == measured.end() || *above == batch) {
    return {on_line, on_line};
  }
  const Point left = PointAt(points, *std::prev(above));
  const Point right = PointAt(points, *above);
  // Where it falls, a value between is one that was never seen: that of the larger batch's engine
  // is right most often (44 %; on the line 1 %).
  const bool falls = right.bytes < left.bytes;
  const Bytes likely = falls ? Grown(right, batch) : on_line;
  Bytes upper = std::max({likely, left.bytes, right.bytes});
  const auto first = above - std::min<std::ptrdiff_t>(2, above - measured.begin());
  const auto last = above + std::min<std::ptrdiff_t>(2, measured.end() - above);
  for (auto b = first; b != last; ++b) upper = std::max(upper, Grown(PointAt(points, *b), batch));
  return {likely, upper};
}

}  // namespace

std::optional<Workspace> FindWorkspace(const WorkspaceTable& table, const ConvShape& shape,
                                       ConvDirection direction) {
  const WorkspaceTable::Series series = SeriesOf(table, shape, direction);
  const std::vector<Point>& points = series.points;
  if (points.empty()) return std::nullopt;

  const auto after = std::lower_bound(points.begin(), points.end(), shape.n,
                                      [](const Point& p, std::int64_t n) { return p.batch < n; });
  if (after == points.begin()) {
    if (after->batch != shape.n) return std::nullopt;
    return Workspace{after->bytes, after->bytes};
  }
  if (after == points.end()) {
    // Points on a line are left out of the file, so that a long last piece is a clear line.
    if (points.size() < 2 || shape.n > kFurthest * points.back().batch) return std::nullopt;
    const Point& before = points[points.size() - 2];
    if (before.batch * 2 > points.back().batch) return std::nullopt;
    const Bytes bytes = std::max<Bytes>(0, OnLine(before, points.back(), shape.n));
    return Workspace{bytes, std::max(bytes, Grown(points.back(), shape.n))};
  }
  return BetweenMeasured(points, *series.batches, shape.n);
}

const AskedWorkspaces* AskedFor(const Job& job, const Gpu& gpu) {
  const bool same = job.asked && !gpu.assumed && job.asked->gpu == gpu.name;
  return same ? job.asked.get() : nullptr;
}

std::optional<Workspace> FindAsked(const AskedWorkspaces& asked, const ConvShape& shape,
                                   ConvDirection direction, int multiprocessors) {
  const std::optional<Workspace> found = FindWorkspace(asked.table, shape, direction);
  if (!found) return std::nullopt;
  const Bytes by_rule = ConvolutionWorkspace(shape, direction, multiprocessors).upper;
  const Bytes near = found->upper + found->upper / 50 + kCounters;
  Bytes upper = std::max(near, by_rule);
  if (asked.gpu == kCheckedOn) {
    const bool product = shape.kh == 1 && shape.kw == 1;
    upper = product ? std::min(upper, near + kSplitProducts) : near;
  }
  if (const auto timed = FindWorkspace(asked.timed, shape, direction)) {
    upper = std::max(upper, timed->upper);
  }
  return Workspace{found->likely, upper};
}

std::optional<PlanSearch> FindSearch(const AskedWorkspaces& asked, const ConvShape& shape,
                                     ConvDirection direction) {
  const std::optional<Workspace> largest = FindWorkspace(asked.searched, shape, direction);
  if (!largest) return std::nullopt;
  const std::string_view dtype = shape.is_fp16              ? "float16"
                                 : shape.element_bytes == 2 ? "bfloat16"
                                                            : "float32";
  const std::string key = shape.volume ? VolumeKey(shape, dtype) : FoldedKey(shape, dtype);
  return PlanSearch{fmt::format("{} {} {}", key, shape.n, static_cast<int>(direction)), *largest};
}

}  // namespace plimsoll
