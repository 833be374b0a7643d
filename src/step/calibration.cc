#include "step/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "step/calibration_data.h"

namespace plimsoll {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSchema = "plimsoll.calibration/1";

/// All of a shape but its batch.
std::string KeyOf(const ConvShape& s) {
  // TF32 and fp32 are one here, and so are fp16 and bf16: 38 of 39 measured pairs agree.
  return fmt::format("{}{} {},{},{} {},{},{} {},{} {},{} {},{} {}{}", s.element_bytes,
                     s.channels_last ? 'l' : 'f', s.c, s.h, s.w, s.k, s.kh, s.kw, s.stride_h,
                     s.stride_w, s.pad_h, s.pad_w, s.dilation_h, s.dilation_w, s.groups,
                     s.transposed ? 't' : ' ');
}

}  // namespace

class Calibration::Reader {
 public:
  explicit Reader(Calibration& into) : into_(into) {}

  void Read(const Json& document) {
    into_.gpu_ = document.at("gpu").get<std::string>();
    for (const Json& row : document.at("convolutions")) ReadRow(row);
  }

 private:
  void ReadRow(const Json& row) {
    ConvShape s;
    s.element_bytes = row.at(0).get<int>();
    s.channels_last = row.at(1).get<int>() != 0;
    std::int64_t* const fields[] = {&s.c,          &s.h,          &s.w,        &s.k,     &s.kh,
                                    &s.kw,         &s.stride_h,   &s.stride_w, &s.pad_h, &s.pad_w,
                                    &s.dilation_h, &s.dilation_w, &s.groups};
    const Json& shape = row.at(2);
    for (std::size_t i = 0; i < std::size(fields); ++i)
      *fields[i] = shape.at(i).get<std::int64_t>();
    s.transposed = row.at(3).get<int>() != 0;
    Series& series = into_.series_[KeyOf(s)];
    for (std::size_t direction = 0; direction < 3; ++direction) {
      const Json& numbers = row.at(4 + direction);
      std::vector<Point>& points = series.points[direction];
      for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
        points.push_back({numbers[i].get<std::int64_t>(), numbers[i + 1].get<Bytes>()});
      }
      std::sort(points.begin(), points.end(),
                [](const Point& a, const Point& b) { return a.batch < b.batch; });
    }
  }

  Calibration& into_;
};

Result<Calibration> Calibration::Read(const Input& input) {
  const Error broken{.message = "this is not a calibration file",
                     .file = input.name(),
                     .hint = "make it with plimsoll.calibrate in Python: docs/calibrate.md"};
  try {
    const Json document = Json::parse(input.bytes());
    if (document.value("schema", "") != kSchema) return broken;
    Calibration calibration;
    Reader(calibration).Read(document);
    return calibration;
  } catch (const Json::parse_error& error) {
    Error cut = broken;
    cut.offset = error.byte;
    return cut;
  } catch (const Json::exception&) {
    return broken;
  }
}

const Calibration* Calibration::BuiltIn(std::string_view gpu) {
  static const std::optional<Calibration> h200 = [] {
    std::optional<Calibration> calibration;
    Result<Input> input = Input::FromMemory("the built-in calibration", CalibrationBytes());
    if (!input) return calibration;
    if (Result<Calibration> read = Calibration::Read(*input)) calibration = std::move(*read);
    return calibration;
  }();
  return h200 && h200->gpu_ == gpu ? &*h200 : nullptr;
}

std::optional<Workspace> Calibration::Find(const ConvShape& shape, ConvDirection direction) const {
  const auto found = series_.find(KeyOf(shape));
  if (found == series_.end()) return std::nullopt;
  const std::vector<Point>& points = found->second.points[static_cast<std::size_t>(direction)];
  const auto after = std::lower_bound(points.begin(), points.end(), shape.n,
                                      [](const Point& p, std::int64_t n) { return p.batch < n; });
  if (after != points.end() && after->batch == shape.n)
    return Workspace{after->bytes, after->bytes};
  if (after == points.begin() || after == points.end()) return std::nullopt;
  const Point& low = *std::prev(after);
  const double share = double(shape.n - low.batch) / double(after->batch - low.batch);
  const Bytes bytes = low.bytes + static_cast<Bytes>(share * double(after->bytes - low.bytes));
  return Workspace{bytes, std::max(bytes, std::max(low.bytes, after->bytes))};
}

}  // namespace plimsoll
