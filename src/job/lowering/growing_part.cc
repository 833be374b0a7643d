#include "job/lowering/growing_part.h"

#include <algorithm>
#include <numeric>

namespace plimsoll {
namespace {

/// The dimensions from the outermost to the innermost; nothing where there are gaps between them.
std::optional<std::vector<std::size_t>> OrderWithoutGaps(const Layout& layout) {
  std::vector<std::size_t> order(layout.sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t d) {
    return std::pair(layout.sizes[d] == 1, -layout.strides[d]);
  });
  std::int64_t elements = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t d = order[i];
    if (layout.sizes[d] > 1 && layout.strides[d] != elements) return std::nullopt;
    elements = std::min(elements * std::max<std::int64_t>(layout.sizes[d], 1), kMostElements);
  }
  return order;
}

}  // namespace

std::int64_t GrowingPart::Step::After(std::int64_t rounds) const {
  std::int64_t value = 0;
  if (__builtin_mul_overflow(by, rounds, &value) || __builtin_add_overflow(value, last, &value)) {
    value = by > 0 ? kMostElements : -kMostElements;
  }
  return std::clamp(value, -kMostElements, kMostElements);
}

GrowingPart::GrowingPart(const Variant& variant, const Part& before, const Part& last,
                         const AtBatch& at)
    : asked_(at), place_(variant.calls.size(), 0) {
  static_cast<JobFacts&>(job_) = at.job();
  // In their order, so that each keeps its number.
  const StringTable& strings = at.job().strings;
  for (std::size_t i = 0; i < strings.size(); ++i) job_.strings.Intern(strings[StringId(i)]);
  std::vector<CallRecord>& calls = job_.variants.emplace_back().calls;
  std::vector<std::uint32_t> earlier;
  for (const JobEvent& event : before.events) {
    if (event.kind == JobEvent::Kind::kCall) earlier.push_back(event.index);
  }
  // All are there before numbers are remembered by where they are.
  for (const JobEvent& event : last.events) {
    if (event.kind != JobEvent::Kind::kCall) continue;
    place_[event.index] = static_cast<std::uint32_t>(calls.size());
    calls.push_back(variant.calls[event.index]);
  }
  std::size_t next = 0;
  for (const JobEvent& event : last.events) {
    if (event.kind != JobEvent::Kind::kCall || next == earlier.size()) continue;
    Add(variant.calls[earlier[next++]], variant.calls[event.index]);
  }
  PutAt(0);
}

GrowingPart::Step GrowingPart::StepOf(std::int64_t before, std::int64_t last) {
  grows_ |= before != last;
  return {.last = last, .by = last - before};
}

void GrowingPart::Add(const CallRecord& before, const CallRecord& last) {
  CallRecord& call = job_.variants[0].calls[numbers_of_calls_++];
  for (std::size_t i = 0; i < call.args.size(); ++i) Grow(before.args[i], call.args[i]);
  for (std::size_t i = 0; i < call.kwargs.size(); ++i) {
    Grow(before.kwargs[i].second, call.kwargs[i].second);
  }
  for (std::size_t i = 0; i < call.results.size(); ++i) Grow(before.results[i], call.results[i]);
  for (std::size_t i = 0; i < call.fresh.size(); ++i) {
    const Bytes then = asked_.BytesOf(before, before.fresh[i]);
    const Bytes now = asked_.BytesOf(last, last.fresh[i]);
    const std::size_t result = call.fresh[i].result;
    const bool of_layout = then == asked_.layout(before.results[result].layout).bytes() &&
                           now == asked_.layout(last.results[result].layout).bytes();
    storages_.push_back(
        {.fresh = &call.fresh[i],
         .step = StepOf(then, now),
         .layout = of_layout ? std::optional(call.results[result].layout) : std::nullopt});
  }
}

void GrowingPart::Grow(const Argument& before, Argument& last) {
  if (auto* number = std::get_if<Number>(&last.is)) {
    numbers_.push_back(
        {number, StepOf(asked_.Of(std::get<Number>(before.is)), asked_.Of(*number))});
  } else if (auto* use = std::get_if<TensorUse>(&last.is)) {
    Grow(std::get<TensorUse>(before.is), *use);
  } else if (auto* list = std::get_if<Argument::List>(&last.is)) {
    const auto& other = std::get<Argument::List>(before.is);
    for (std::size_t i = 0; i < list->size(); ++i) Grow(other[i], (*list)[i]);
  }
}

void GrowingPart::Grow(const TensorUse& before, TensorUse& last) {
  last.layout = LayoutOf(before.layout, last.layout);
}

std::uint32_t GrowingPart::LayoutOf(std::uint32_t before, std::uint32_t last) {
  const auto [known, added] = layout_of_.try_emplace({before, last}, job_.layouts.size());
  if (!added) return known->second;
  const Layout& then = asked_.layout(before);
  const Layout& now = asked_.layout(last);
  LayoutRecord& record = job_.layouts.emplace_back();
  record.dtype = now.dtype;
  GrowingLayout& layout = layouts_.emplace_back();
  const bool same = then.sizes.size() == now.sizes.size();
  for (std::size_t d = 0; d < now.sizes.size(); ++d) {
    layout.sizes.push_back(StepOf(same ? then.sizes[d] : now.sizes[d], now.sizes[d]));
    layout.strides.push_back(StepOf(same ? then.strides[d] : now.strides[d], now.strides[d]));
  }
  if (same && OrderWithoutGaps(then)) layout.order = OrderWithoutGaps(now);
  return known->second;
}

void GrowingPart::PutAt(std::int64_t rounds) {
  for (const GrowingNumber& n : numbers_) *n.number = Number::Always(n.step.After(rounds));
  for (std::size_t i = 0; i < layouts_.size(); ++i) {
    const GrowingLayout& layout = layouts_[i];
    LayoutRecord& record = job_.layouts[i];
    record.sizes.clear();
    record.strides.assign(layout.strides.size(), Number::Always(1));
    for (const Step& size : layout.sizes) {
      record.sizes.push_back(Number::Always(std::max<std::int64_t>(size.After(rounds), 0)));
    }
    if (!layout.order) {
      for (std::size_t d = 0; d < layout.strides.size(); ++d) {
        record.strides[d] = Number::Always(layout.strides[d].After(rounds));
      }
      continue;
    }
    std::int64_t elements = 1;
    for (std::size_t k = layout.order->size(); k-- > 0;) {
      const std::size_t d = (*layout.order)[k];
      record.strides[d] = Number::Always(elements);
      const std::int64_t size = std::max<std::int64_t>(record.sizes[d].least(), 1);
      elements = elements > kMostElements / size ? kMostElements : elements * size;
    }
  }
  at_.emplace(job_, asked_.batch());
  for (const GrowingStorage& s : storages_) {
    s.fresh->bytes = Number::Always(s.layout ? at_->layout(*s.layout).bytes()
                                             : std::max<Bytes>(s.step.After(rounds), 0));
  }
}

}  // namespace plimsoll
