#include "job/rules/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "files/encode.h"
#include "files/json.h"
#include "job/file/layout.h"
#include "job/rules/calibration_data.h"

namespace plimsoll {
namespace {

constexpr std::string_view kCalibrationSchema = "plimsoll.calibration/2";
constexpr std::string_view kChecksum = "crc32 ";
constexpr std::int64_t kLargestMeasured = 1 << 30;
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

/// A whole number from 0 to `most`, and nothing else.
std::optional<std::int64_t> ToInt(std::string_view text, std::int64_t most) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end || value < 0 || value > most) return std::nullopt;
  return value;
}

/// "1:100 2:200", the batches rising; nothing where it is anything else.
std::optional<std::vector<Point>> ReadPoints(std::string_view cell) {
  std::vector<Point> points;
  while (!cell.empty()) {
    std::string_view pair = NextCell(cell, ' ');
    const auto batch = ToInt(NextCell(pair, ':'), kLargestMeasured);
    const auto bytes = ToInt(pair, kMostElements);
    if (!batch || !bytes) return std::nullopt;
    if (*batch <= (points.empty() ? 0 : points.back().batch)) return std::nullopt;
    points.push_back({*batch, *bytes});
  }
  return points;
}

/// What follows the key of a convolution: which list of batches, and three cells of points.
bool IsConvolution(std::string_view line, std::size_t lists) {
  const auto list = ToInt(NextCell(line, '\t'), kLargestMeasured);
  if (!list || static_cast<std::size_t>(*list) >= lists) return false;
  if (std::count(line.begin(), line.end(), '\t') != 2) return false;
  for (int direction = 0; direction < 3; ++direction) {
    if (!ReadPoints(NextCell(line, '\t'))) return false;
  }
  return true;
}

/// Lists of whole numbers that rise; nothing where it is anything else.
std::optional<std::vector<std::vector<std::int64_t>>> ReadBatches(const Json& json) {
  std::vector<std::vector<std::int64_t>> lists;
  if (!json.is_array()) return std::nullopt;
  for (const Json& list : json.items()) {
    if (!list.is_array()) return std::nullopt;
    std::vector<std::int64_t>& batches = lists.emplace_back();
    for (const Json& number : list.items()) {
      const std::int64_t batch = number.integer().value_or(0);
      if (batch > kLargestMeasured) return std::nullopt;
      if (batch <= (batches.empty() ? 0 : batches.back())) return std::nullopt;
      batches.push_back(batch);
    }
  }
  return lists;
}

/// No card has more for a context.
constexpr Bytes kLargestContext = 64 * kGiB;

/// Two sizes, the second no less than the first; nothing where it is anything else.
std::optional<MeasuredContext> ReadContext(const Json& json) {
  const Bytes bare = json["bare"].integer().value_or(0);
  const Bytes training = json["training"].integer().value_or(0);
  if (bare <= 0 || training < bare || training > kLargestContext) return std::nullopt;
  return MeasuredContext{bare, training};
}

/// The text without its last line, if that has the checksum of the others.
std::optional<std::string_view> Checked(std::string_view text) {
  const std::size_t last = text.rfind(kChecksum);
  if (last == std::string_view::npos || last == 0 || text[last - 1] != '\n') return std::nullopt;
  const std::string expected = fmt::format("{}{:08x}\n", kChecksum, Crc32(text.substr(0, last)));
  if (text.substr(last) != expected) return std::nullopt;
  return text.substr(0, last);
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

Result<Calibration> Calibration::Read(const Input& input) {
  Error error{.message = "this is not a calibration file",
              .file = input.name(),
              .hint = "make it with plimsoll.calibrate in Python: docs/calibrate.md"};
  Calibration calibration;
  calibration.text_ = std::make_shared<const std::string>(input.bytes());
  const std::string_view text = *calibration.text_;
  std::string_view rest = text;
  ReadBudget budget(input);
  const Result<Json> read = ReadJson(NextCell(rest, '\n'), budget);
  if (!read || (*read)["schema"] != kCalibrationSchema) return error;
  const Json& header = *read;
  const std::optional<std::string_view> checked = Checked(text);
  error.message = "the calibration file is damaged";
  error.hint = "copy it again, or make it anew with plimsoll.calibrate in Python";
  if (!checked) return error;
  const auto batches = ReadBatches(header["batches"]);
  if (!batches || !header["gpu"].is_text()) return error;
  calibration.gpu_ = *header["gpu"].text();
  if (!header["context"].is_null()) {
    calibration.context_ = ReadContext(header["context"]);
    if (!calibration.context_) return error;
  }
  calibration.batches_ = *batches;
  rest.remove_suffix(text.size() - checked->size());
  calibration.lines_.reserve(rest.size() / 100);
  while (!rest.empty()) {
    std::string_view line = NextCell(rest, '\n');
    const auto at = static_cast<std::uint64_t>(line.data() - text.data());
    const std::string_view key = NextCell(line, '\t');
    if (key.starts_with("time ")) continue;
    if (!IsConvolution(line, batches->size())) {
      error.offset = at;
      return error;
    }
    calibration.lines_.emplace(key, line);
  }
  return calibration;
}

std::shared_ptr<const Calibration> Calibration::BuiltIn(std::string_view gpu) {
  static const std::shared_ptr<const Calibration> h200 = []() -> std::shared_ptr<Calibration> {
    const Result<Input> input = Input::FromMemory("the built-in calibration", CalibrationBytes());
    if (!input) return nullptr;
    Result<Calibration> read = Calibration::Read(*input);
    return read ? std::make_shared<Calibration>(std::move(*read)) : nullptr;
  }();
  return h200 && h200->gpu_ == gpu ? h200 : nullptr;
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
  const std::int64_t list = ToInt(NextCell(line, '\t'), kLargestMeasured).value_or(0);
  std::string_view cell;
  for (int d = 0; d <= static_cast<int>(direction); ++d) cell = NextCell(line, '\t');
  const std::vector<Point> points = ReadPoints(cell).value_or(std::vector<Point>());
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
  return BetweenMeasured(points, batches_[static_cast<std::size_t>(list)], shape.n);
}

}  // namespace plimsoll
