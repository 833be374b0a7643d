#include "job/calls/call.h"

#include <algorithm>
#include <functional>

#include "job/calls/arithmetic.h"

namespace plimsoll {
namespace {

/// Rules multiply two such counts; the ends of slices, which are larger, are none.
constexpr std::int64_t kMostCount = std::int64_t{1} << 30;
std::int64_t Bounded(std::int64_t n) { return std::clamp(n, -kMostCount, kMostCount); }

}  // namespace

AtBatch::AtBatch(const Job& job, std::int64_t batch) : job_(job), batch_(batch) {
  layouts_.reserve(job.layouts.size());
  for (const LayoutRecord& record : job.layouts) {
    Layout& layout = layouts_.emplace_back();
    layout.dtype = record.dtype;
    // What shrinks with the batch ends at 0, what grows beyond every device at kMostElements.
    std::int64_t elements = 1;
    for (const Number& size : record.sizes) {
      layout.sizes.push_back(std::clamp<std::int64_t>(Of(size), 0, kMostElements / elements));
      elements *= std::max<std::int64_t>(layout.sizes.back(), 1);
    }
    // Nor does a tensor reach further than that.
    for (std::size_t d = 0; d < record.strides.size(); ++d) {
      const std::int64_t size = d < layout.sizes.size() ? layout.sizes[d] : 1;
      layout.strides.push_back(std::clamp<std::int64_t>(
          Of(record.strides[d]), 0, kMostElements / std::max<std::int64_t>(size, 1)));
    }
  }
}

std::int64_t BatchesAt(const Job& job, const Number& number, std::int64_t batch) {
  if (!number.depends()) return number.least();
  return std::max<std::int64_t>(1, CeilDiv(Product(number.least(), job.batches[0]), batch));
}

std::int64_t AtBatch::Of(const Number& number) const {
  if (!number.depends()) return number.least();
  const std::int64_t run = job_.batches[1] - job_.batches[0];
  const std::int64_t past = batch_ - job_.batches[0];
  std::int64_t rise = 0;
  std::int64_t value = 0;
  if (__builtin_sub_overflow(number.at(1), number.at(0), &rise) ||
      __builtin_mul_overflow(past, rise, &value) ||
      __builtin_add_overflow(number.at(0), value / run, &value)) {
    value = (number.at(1) > number.at(0)) == (past > 0) ? kMostElements : -kMostElements;
  }
  return std::clamp(value, -kMostElements, kMostElements);
}

Bytes AtBatch::BytesOf(const CallRecord& call, const NewStorage& fresh) const {
  if (fresh.result < call.results.size()) {
    const LayoutRecord& record = job_.layouts[call.results[fresh.result].layout];
    Number bytes = Number::Always(ElementSize(record.dtype));
    for (const Number& size : record.sizes) bytes = Number::Each(std::multiplies<>(), bytes, size);
    if (bytes == fresh.bytes) {
      return layouts_[call.results[fresh.result].layout].bytes();
    }
  }
  return Of(fresh.bytes);
}

std::optional<Tensor> Call::TensorOf(const Argument& value) const {
  if (const auto* use = std::get_if<TensorUse>(&value.is)) return Make(*use);
  return std::nullopt;
}

std::optional<Tensor> Call::TensorArg(std::size_t i) const {
  const Argument* value = Arg(i);
  return value ? TensorOf(*value) : std::nullopt;
}

std::vector<Tensor> Call::TensorsArg(std::size_t i) const {
  std::vector<Tensor> tensors;
  const Argument* value = Arg(i);
  const auto* list = value ? std::get_if<Argument::List>(&value->is) : nullptr;
  if (list == nullptr) return tensors;
  for (const Argument& element : *list) {
    if (const auto tensor = TensorOf(element)) tensors.push_back(*tensor);
  }
  return tensors;
}

std::optional<std::int64_t> Call::IntArg(std::size_t i) const {
  const Argument* value = Arg(i);
  const auto* number = value ? std::get_if<Number>(&value->is) : nullptr;
  if (number == nullptr) return std::nullopt;
  return Bounded(at_.Of(*number));
}

std::vector<std::int64_t> Call::IntsArg(std::size_t i) const {
  std::vector<std::int64_t> ints;
  const Argument* value = Arg(i);
  if (value == nullptr) return ints;
  if (const auto* number = std::get_if<Number>(&value->is)) return {Bounded(at_.Of(*number))};
  if (const auto* list = std::get_if<Argument::List>(&value->is)) {
    for (const Argument& element : *list) {
      if (const auto* number = std::get_if<Number>(&element.is)) {
        ints.push_back(Bounded(at_.Of(*number)));
      }
    }
  }
  return ints;
}

std::vector<bool> Call::BoolsArg(std::size_t i) const {
  std::vector<bool> bools;
  const Argument* value = Arg(i);
  const auto* list = value ? std::get_if<Argument::List>(&value->is) : nullptr;
  if (list == nullptr) return bools;
  for (const Argument& element : *list) bools.push_back(BoolOf(&element, false));
  return bools;
}

bool Call::BoolOf(const Argument* value, bool otherwise) const {
  const auto* is = value ? std::get_if<bool>(&value->is) : nullptr;
  return is ? *is : otherwise;
}

bool Call::BoolArg(std::size_t i, bool otherwise) const { return BoolOf(Arg(i), otherwise); }

double Call::FloatArg(std::size_t i, double otherwise) const {
  const Argument* value = Arg(i);
  if (value == nullptr) return otherwise;
  if (const auto* number = std::get_if<double>(&value->is)) return *number;
  if (const auto* number = std::get_if<Number>(&value->is)) {
    return static_cast<double>(at_.Of(*number));
  }
  return otherwise;
}

const Argument* Call::Keyword(std::string_view name) const {
  for (const auto& [key, value] : record_.kwargs) {
    if (at_.job().strings[key] == name) return &value;
  }
  return nullptr;
}

std::optional<std::size_t> Call::FreshOfResult(std::size_t result) const {
  for (std::size_t i = 0; i < record_.fresh.size(); ++i) {
    if (record_.fresh[i].result == result) return i;
  }
  return std::nullopt;
}

}  // namespace plimsoll
