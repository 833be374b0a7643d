#include "step/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "step/calibration_data.h"
#include "step/file/layout.h"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "plimsoll.calibration/1";
/// A batch so many times the largest that was measured is beyond reach.
constexpr std::int64_t kFurthest = 4;

/// What a shape takes at a batch.
struct Point {
  std::int64_t batch = 0;
  Bytes bytes = 0;
};

std::string KeyOf(const ConvShape& s, std::string_view dtype) {
  return fmt::format("{} {} {},{},{} {},{},{} {},{} {},{} {},{} {}{}", dtype,
                     s.channels_last ? "nhwc" : "nchw", s.c, s.h, s.w, s.k, s.kh, s.kw, s.stride_h,
                     s.stride_w, s.pad_h, s.pad_w, s.dilation_h, s.dilation_w, s.groups,
                     s.transposed ? " transposed" : "");
}

std::string_view NextCell(std::string_view& line, char separator) {
  const std::size_t end = line.find(separator);
  const std::string_view cell = line.substr(0, end);
  line.remove_prefix(end == std::string_view::npos ? line.size() : end + 1);
  return cell;
}

std::int64_t ToInt(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::vector<Point> ReadPoints(std::string_view cell) {
  std::vector<Point> points;
  while (!cell.empty()) {
    std::string_view pair = NextCell(cell, ' ');
    // No card holds more, whatever a file says.
    const std::int64_t batch = std::clamp<std::int64_t>(ToInt(NextCell(pair, ':')), 0, 1 << 30);
    points.push_back({batch, std::clamp<Bytes>(ToInt(pair), 0, kMostElements)});
  }
  return points;
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
Workspace Between(const std::vector<Point>& points, const std::vector<std::int64_t>& measured,
                  std::int64_t batch) {
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

Result<Calibration> Calibration::Read(const Input& input) {
  const Error broken{.message = "this is not a calibration file",
                     .file = input.name(),
                     .hint = "make it with plimsoll.calibrate in Python: docs/calibrate.md"};
  Calibration calibration;
  calibration.text_ = std::make_shared<const std::string>(input.bytes());
  std::string_view rest = *calibration.text_;
  try {
    const Json header = Json::parse(NextCell(rest, '\n'));
    if (header.value("schema", "") != kSchema) return broken;
    calibration.gpu_ = header.at("gpu").get<std::string>();
    calibration.batches_ = header.at("batches").get<std::vector<std::vector<std::int64_t>>>();
  } catch (const Json::exception&) {
    return broken;
  }
  calibration.lines_.reserve(rest.size() / 100);
  while (!rest.empty()) {
    std::string_view line = NextCell(rest, '\n');
    const std::string_view key = NextCell(line, '\t');
    calibration.lines_.emplace(key, line);
  }
  return calibration;
}

const Calibration* Calibration::BuiltIn(std::string_view gpu) {
  static const std::optional<Calibration> h200 = [] {
    std::optional<Calibration> calibration;
    const Result<Input> input = Input::FromMemory("the built-in calibration", CalibrationBytes());
    if (!input) return calibration;
    if (Result<Calibration> read = Calibration::Read(*input)) calibration = std::move(*read);
    return calibration;
  }();
  return h200 && h200->gpu_ == gpu ? &*h200 : nullptr;
}

std::optional<Workspace> Calibration::Find(const ConvShape& shape, ConvDirection direction) const {
  auto found = lines_.end();
  if (shape.element_bytes != 4 && shape.element_bytes != 2) return std::nullopt;
  if (shape.element_bytes == 4) {
    found = lines_.find(KeyOf(shape, "float32"));
  } else {
    // fp16 has a line of its own only where it differs.
    if (shape.is_fp16) found = lines_.find(KeyOf(shape, "float16"));
    if (found == lines_.end()) found = lines_.find(KeyOf(shape, "bfloat16"));
  }
  if (found == lines_.end()) return std::nullopt;
  std::string_view line = found->second;
  const auto list = static_cast<std::size_t>(ToInt(NextCell(line, '\t')));
  std::string_view cell;
  for (int d = 0; d <= static_cast<int>(direction); ++d) cell = NextCell(line, '\t');
  const std::vector<Point> points = ReadPoints(cell);
  if (points.empty() || list >= batches_.size()) return std::nullopt;

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
  return Between(points, batches_[list], shape.n);
}

}  // namespace plimsoll
