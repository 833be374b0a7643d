#include "job/file/step_epoch.h"

#include <fmt/format.h>

#include "job/file/step_values.h"

namespace plimsoll::step_file {
namespace {

std::int64_t Whole(const Json& json) {
  const std::int64_t n = Int(json);
  if (n < 0 || n > kMostElements) Refuse(fmt::format("an epoch has a number of {}", n));
  return n;
}

std::vector<std::int64_t> WholeNumbers(const Json& json) {
  if (!json.is_array()) Refuse("an epoch has something else than a list of numbers");
  std::vector<std::int64_t> numbers;
  for (const Json& number : json.items()) numbers.push_back(Whole(number));
  return numbers;
}

EpochFacts::Shapes ReadShapes(const Json& json) {
  if (!json.is_array()) Refuse("a batch of an epoch has no sizes");
  EpochFacts::Shapes shapes;
  for (const Json& shape : json.items()) shapes.push_back(WholeNumbers(shape));
  return shapes;
}

}  // namespace

std::shared_ptr<const EpochFacts> ReadEpoch(const Json& json) {
  auto epoch = std::make_shared<EpochFacts>();
  epoch->batches = Whole(json["batches"]);
  epoch->complete = IsTrue(json["complete"]);
  for (const Json& kind : Array(json, "shapes")) {
    if (!kind.is_array() || kind.size() != 2) Refuse("a kind of batch is not [count, sizes]");
    epoch->kinds.push_back({.count = Whole(kind[0]), .shapes = ReadShapes(kind[1])});
  }
  for (const Json& heavy : Array(json, "heaviest")) {
    epoch->heaviest.push_back({.batch = Whole(heavy["batch"]),
                               .samples = WholeNumbers(heavy["samples"]),
                               .shapes = ReadShapes(heavy["shapes"])});
  }
  for (const Json& length : Array(json, "lengths")) {
    const std::vector<std::int64_t> pair = WholeNumbers(length);
    if (pair.size() != 2 || pair[0] < 1 ||
        (!epoch->lengths.empty() && pair[0] <= epoch->lengths.back().length)) {
      Refuse("the lengths of an epoch do not grow");
    }
    epoch->lengths.push_back({.length = pair[0], .samples = pair[1]});
  }
  return epoch;
}

}  // namespace plimsoll::step_file
