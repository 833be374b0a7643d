#include "job/file/step_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace plimsoll::step_file {

void Refuse(std::string message) { throw Unusable{std::move(message)}; }

std::span<const Json> Array(const Json& object, const char* key) {
  if (!object[key].is_array()) Refuse(fmt::format("no list \"{}\"", key));
  return object[key].items();
}

std::int64_t Int(const Json& value) {
  if (!IsInteger(value)) Refuse("a number is no integer");
  if (!value.integer()) Refuse("a number is too large");
  return *value.integer();
}

namespace {

/// At the first point's length, to begin with.
Number OfForm(const Json& value, const Job& job) {
  const std::int64_t index = Int(value[0]);
  if (!job.forms || index < 0 || index >= std::ssize(*job.forms)) {
    Refuse(fmt::format("no number {}", index));
  }
  const auto form = static_cast<FormId>(index);
  const auto at = [&](std::int64_t batch) {
    Extent where = job.forms->points().front();
    where.front() = batch;
    return job.forms->At(form, where);
  };
  return {at(job.batches[0]), at(job.batches[1]), form};
}

void CheckCount(std::int64_t n) {
  if (n < 0 || n > kMostElements) Refuse(fmt::format("a size of {}", n));
}

Extent ReadPoint(const Json& json, std::size_t dimensions) {
  if (!json.is_array() || json.size() != dimensions)
    Refuse("a point has not one value a dimension");
  Extent point;
  for (const Json& value : json.items()) {
    point.push_back(Int(value));
    if (point.back() < 1 || point.back() > Forms::kLargestExtent) {
      Refuse(fmt::format("a point at {}", point.back()));
    }
  }
  return point;
}

}  // namespace

Number ReadNumber(const Json& value, const Job& job) {
  if (IsInteger(value)) return Number::Always(Int(value));
  if (value.is_array() && value.size() == 2 && !job.forms) return {Int(value[0]), Int(value[1])};
  if (value.is_array() && value.size() == 1 && job.forms) return OfForm(value, job);
  Refuse("a number is neither an integer nor one that depends on the batch");
}

Number ReadCount(const Json& value, const Job& job) {
  const Number number = ReadNumber(value, job);
  if (number.form() == kNoForm) {
    for (std::size_t point = 0; point < Number::kPoints; ++point) CheckCount(number.at(point));
    return number;
  }
  for (std::size_t point = 0; point < job.forms->points().size(); ++point) {
    CheckCount(job.forms->Captured(number, point));
  }
  const auto count = [](std::int64_t n) { return std::max<std::int64_t>(n, 0); };
  return {count(number.at(0)), count(number.at(1)), number.form()};
}

std::shared_ptr<const Forms> ReadForms(const Json& document) {
  std::vector<std::string> dimensions;
  for (const Json& name : Array(document, "dimensions")) {
    if (!name.is_text()) Refuse("a dimension has no name");
    dimensions.push_back(*name.text());
  }
  if (dimensions.size() < 2 || dimensions.size() > Forms::kMostDimensions) {
    Refuse("there are too few or too many dimensions");
  }
  std::vector<Extent> points;
  for (const Json& point : Array(document, "points")) {
    points.push_back(ReadPoint(point, dimensions.size()));
  }
  if (points.size() < 2 || points.size() > Forms::kMostPoints) {
    Refuse("there are too few or too many points");
  }
  auto forms = std::make_shared<Forms>(std::move(dimensions), std::move(points));
  for (const Json& number : Array(document, "numbers")) {
    if (!number.is_array() || number.size() != forms->points().size()) {
      Refuse("a number has not one value a point");
    }
    std::vector<std::int64_t> values;
    for (const Json& value : number.items()) {
      values.push_back(Int(value));
      if (values.back() < -kMostElements || values.back() > kMostElements) {
        Refuse(fmt::format("a number of {}", values.back()));
      }
    }
    forms->Add(std::move(values));
  }
  return forms;
}

SequenceStep ReadSequenceStep(const Json& value, const Forms& forms) {
  if (!IsInteger(value)) return {.extent = ReadPoint(value, forms.dimensions().size())};
  const std::int64_t point = Int(value);
  if (point < 0 || point >= std::ssize(forms.points())) Refuse(fmt::format("no point {}", point));
  const auto index = static_cast<std::size_t>(point);
  return {.extent = forms.points()[index], .point = index};
}

}  // namespace plimsoll::step_file
