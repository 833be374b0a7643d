#include "job/file/at_length.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

namespace plimsoll {
namespace {

/// The dimension that is not the batch.
constexpr std::size_t kLength = 1;

/// Sizes or strides, by dimension of a layout.
using Dims = std::vector<std::int64_t>;

/// The dimensions from the outermost to the innermost. Those of one element come last: their
/// strides say nothing.
std::vector<std::size_t> OrderOf(const Dims& sizes, const Dims& strides) {
  std::vector<std::size_t> order(sizes.size());
  for (std::size_t d = 0; d < order.size(); ++d) order[d] = d;
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return std::pair(sizes[a] == 1, -strides[a]) < std::pair(sizes[b] == 1, -strides[b]);
  });
  return order;
}

/// Of a tensor without gaps.
Dims DenseStrides(const Dims& sizes, const std::vector<std::size_t>& order) {
  Dims strides(sizes.size());
  std::int64_t elements = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = elements;
    elements = std::min(elements * std::max<std::int64_t>(sizes[order[i]], 1), kMostElements);
  }
  return strides;
}

class Slicer {
 public:
  /// Where the smaller and the larger batch are.
  Slicer(const Job& job, SequenceStep smaller, SequenceStep larger)
      : forms_(*job.forms),
        made_{.job = CopyOf(job, 0)},
        at_{std::move(smaller), std::move(larger)} {
    made_.job.variants = job.variants;
  }

  JobAtLength Run() {
    Job& job = made_.job;
    for (const LayoutRecord& layout : job.layouts) captured_.push_back(layout);
    for (LayoutRecord& layout : job.layouts) Put(layout);
    for (Variant& variant : job.variants) {
      for (CallRecord& call : variant.calls) Put(call);
      for (Part& part : variant.later) {
        Put(part.times);
        Put(part.batches);
      }
    }
    if (job.epoch) Put(*job.epoch);
    for (DueGrowth& one : job.growing) Put(one.bytes);
    if (job.host) Put(*job.host);
    for (const StringId op : unexplained_) {
      made_.unexplained.emplace_back(BaseName(job.strings[op]));
    }
    return std::move(made_);
  }

 private:
  std::int64_t ValueOf(const Number& number, const SequenceStep& at) {
    if (at.point) return forms_.Captured(number, *at.point);
    if (!forms_.IsWhole(number.form(), at.extent)) ++made_.rounded;
    return forms_.At(number.form(), at.extent);
  }

  void Put(Number& number) {
    if (number.form() == kNoForm) return;
    number = {ValueOf(number, at_[0]), ValueOf(number, at_[1]), number.form()};
  }
  /// Of something that is never less than nothing.
  void PutCount(Number& number) {
    Put(number);
    const auto count = [](std::int64_t n) { return std::max<std::int64_t>(n, 0); };
    number = {count(number.at(0)), count(number.at(1)), number.form()};
  }

  /// Products and squares of sizes are on no line: strides of what has no gaps follow from sizes.
  void Put(LayoutRecord& layout) {
    const auto order = DenseOrder(layout);
    for (Number& size : layout.sizes) PutCount(size);
    if (!order) {
      for (Number& stride : layout.strides) PutCount(stride);
      return;
    }
    Dims at[Number::kPoints];
    for (std::size_t batch = 0; batch < Number::kPoints; ++batch) {
      Dims sizes;
      for (const Number& size : layout.sizes) sizes.push_back(size.at(batch));
      at[batch] = DenseStrides(sizes, *order);
    }
    for (std::size_t d = 0; d < layout.strides.size(); ++d) {
      layout.strides[d] = {at[0][d], at[1][d], layout.strides[d].form()};
    }
  }

  Dims Captured(const std::vector<Number>& numbers, std::size_t point) const {
    Dims values;
    for (const Number& number : numbers) values.push_back(forms_.Captured(number, point));
    return values;
  }

  /// The order of a layout that is without gaps at every point of the capture.
  std::optional<std::vector<std::size_t>> DenseOrder(const LayoutRecord& layout) const {
    const std::size_t last = forms_.points().size() - 1;
    const std::vector<std::size_t> order =
        OrderOf(Captured(layout.sizes, last), Captured(layout.strides, last));
    for (std::size_t p = 0; p <= last; ++p) {
      const Dims sizes = Captured(layout.sizes, p);
      const Dims strides = Captured(layout.strides, p);
      const Dims dense = DenseStrides(sizes, order);
      for (std::size_t d = 0; d < sizes.size(); ++d) {
        if (sizes[d] > 1 && strides[d] != dense[d]) return std::nullopt;
      }
    }
    return order;
  }

  void Put(CallRecord& call) {
    for (Argument& argument : call.args) Put(argument);
    for (auto& [name, argument] : call.kwargs) Put(argument);
    for (NewStorage& fresh : call.fresh) {
      if (fresh.bytes.form() == kNoForm) continue;
      if (fresh.result < call.results.size() &&
          IsThatOf(fresh.bytes, captured_[call.results[fresh.result].layout])) {
        fresh.bytes = BytesOf(call.results[fresh.result].layout, fresh.bytes.form());
      } else {
        if (!forms_.IsExplained(fresh.bytes.form())) unexplained_.insert(call.op);
        PutCount(fresh.bytes);
      }
    }
  }

  void Put(Argument& argument) {
    if (auto* number = std::get_if<Number>(&argument.is)) Put(*number);
    if (auto* list = std::get_if<Argument::List>(&argument.is)) {
      for (Argument& element : *list) Put(element);
    }
  }

  /// Whether so many bytes are those of a layout's elements, at every point of the capture.
  bool IsThatOf(const Number& bytes, const LayoutRecord& layout) const {
    for (std::size_t p = 0; p < forms_.points().size(); ++p) {
      std::int64_t product = ElementSize(layout.dtype);
      for (const Number& size : layout.sizes) product *= forms_.Captured(size, p);
      if (product != forms_.Captured(bytes, p)) return false;
    }
    return true;
  }

  Number BytesOf(std::uint32_t index, FormId form) const {
    const LayoutRecord& layout = made_.job.layouts[index];
    const auto at = [&](std::size_t batch) {
      std::int64_t product = ElementSize(layout.dtype);
      for (const Number& size : layout.sizes) {
        product = size.at(batch) > kMostElements / std::max<std::int64_t>(product, 1)
                      ? kMostElements
                      : product * size.at(batch);
      }
      return product;
    };
    return {at(0), at(1), form};
  }

  void Put(HostPeaks& host) {
    Put(host.build);
    Put(host.steps);
    for (HostPeak& part : host.later) Put(part);
  }
  void Put(HostPeak& peak) {
    PutCount(peak.bytes);
    if (peak.left) PutCount(*peak.left);
    for (PinnedEvent& event : peak.pinned) PutCount(event.bytes);
    PutCount(peak.workers);
    PutCount(peak.shared);
  }

  const Forms& forms_;
  JobAtLength made_;
  const SequenceStep at_[Number::kPoints];
  /// The layouts before: their forms tell the points of the capture.
  std::vector<LayoutRecord> captured_;
  std::set<StringId> unexplained_;
};

}  // namespace

bool HasLength(const Job& job) {
  return job.forms && job.sequence.empty() && job.forms->dimensions().size() == 2;
}

const std::string& NameOfLength(const Job& job) { return job.forms->dimensions()[kLength]; }

std::vector<std::int64_t> CapturedLengths(const Job& job) {
  std::set<std::int64_t> lengths;
  for (const Extent& point : job.forms->points()) lengths.insert(point[kLength]);
  return {lengths.begin(), lengths.end()};
}

std::optional<std::int64_t> OnlyBatch(const Job& job) {
  if (!HasLength(job)) return std::nullopt;
  const std::vector<Extent>& points = job.forms->points();
  const std::int64_t batch = points.front().front();
  const auto is_it = [&](const Extent& point) { return point.front() == batch; };
  return std::ranges::all_of(points, is_it) ? std::optional(batch) : std::nullopt;
}

JobAtLength AtLength(const Job& job, std::int64_t length) {
  const auto at = [&](std::size_t batch) {
    return SequenceStep{.extent = {job.batches[batch], length}};
  };
  JobAtLength made = Slicer(job, at(0), at(1)).Run();
  made.job.length = length;
  return made;
}

Job AtStep(const Job& job, const SequenceStep& step) { return Slicer(job, step, step).Run().job; }

}  // namespace plimsoll
