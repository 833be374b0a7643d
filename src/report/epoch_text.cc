#include "report/epoch_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "report/format/table.h"

namespace plimsoll {
namespace {

constexpr std::size_t kBars = 12;
constexpr std::size_t kWidest = 40;
constexpr std::size_t kSamplesShown = 6;

/// "32x512 32"
std::string ShapesText(const EpochFacts::Shapes& shapes) {
  std::vector<std::string> texts;
  for (const Extent& shape : shapes) texts.push_back(fmt::format("{}", fmt::join(shape, "x")));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::int64_t ElementsOf(const EpochFacts::Shapes& shapes) {
  std::int64_t most = 0;
  for (const Extent& shape : shapes) {
    std::int64_t elements = 1;
    for (const std::int64_t size : shape) {
      if (__builtin_mul_overflow(elements, size, &elements)) return kMostElements;
    }
    most = std::max(most, elements);
  }
  return most;
}

/// How many batches have their largest tensor of each size.
struct SizeBar {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
};

std::vector<SizeBar> Distribution(const EpochFacts& epoch) {
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
  for (const EpochFacts::Kind& kind : epoch.kinds) {
    sizes.emplace_back(ElementsOf(kind.shapes), kind.count);
  }
  if (sizes.empty()) return {};
  const auto [least, most] = std::ranges::minmax_element(sizes);
  const std::int64_t low = least->first;
  const std::int64_t run = (most->first - low) / static_cast<std::int64_t>(kBars) + 1;
  std::vector<SizeBar> bars;
  for (std::int64_t from = low; from <= most->first; from += run) {
    bars.push_back({.from = from, .to = std::min(from + run - 1, most->first)});
  }
  for (const auto& [size, count] : sizes) {
    bars[static_cast<std::size_t>((size - low) / run)].count += count;
  }
  return bars;
}

void WriteDistribution(Writer& w, const EpochFacts& epoch) {
  const std::vector<SizeBar> bars = Distribution(epoch);
  if (bars.size() < 2) return;
  w.Heading("Elements of a batch's largest tensor, and how many batches have so many");
  std::int64_t most = 1;
  for (const SizeBar& bar : bars) most = std::max(most, bar.count);
  for (const SizeBar& bar : bars) {
    const auto width = static_cast<std::size_t>(double(kWidest) * double(bar.count) / double(most));
    w.Line(fmt::format("  {:>12} to {:>12} {:>9}  {}", bar.from, bar.to, bar.count,
                       std::string(bar.count > 0 ? std::max<std::size_t>(1, width) : 0, '#')));
  }
}

void WriteHeaviest(Writer& w, const EpochFacts& epoch) {
  w.Heading("The heaviest batches");
  Table table({{.heading = "batch", .right = true},
               {.heading = "sizes"},
               {.heading = "its samples", .wraps = true}});
  for (const EpochFacts::Heavy& heavy : epoch.heaviest) {
    const std::size_t shown = std::min(kSamplesShown, heavy.samples.size());
    const std::vector<std::int64_t> first(heavy.samples.begin(),
                                          heavy.samples.begin() + std::ptrdiff_t(shown));
    table.Row(
        {fmt::format("{}", heavy.batch), ShapesText(heavy.shapes),
         fmt::format("{}{}", fmt::join(first, ", "), shown < heavy.samples.size() ? ", …" : "")});
  }
  table.WriteTo(w);
}

std::string_view BatchingWords(Batching::Kind kind) {
  switch (kind) {
    case Batching::Kind::kAsTheyCome:
      return "as they come";
    case Batching::Kind::kSorted:
      return "samples of like length together";
    case Batching::Kind::kBuckets:
      return "so, padded to multiples of 64";
    case Batching::Kind::kTokens:
      return "as many samples as a budget of tokens takes";
    case Batching::Kind::kPacked:
      return "packed one behind the other";
  }
  return "";
}

void WriteBatchings(Writer& w, const EpochFacts& epoch) {
  const Batchings found = FindBatchings(epoch);
  if (found.ways.empty()) return;
  w.Heading("Other batches of the same samples, in an epoch");
  Table table({{},
               {.heading = "steps", .right = true},
               {.heading = "tokens", .right = true},
               {.heading = "padding", .right = true},
               {.heading = "heaviest", .right = true}});
  for (const Batching& way : found.ways) {
    const double padding = 1 - double(found.tokens) / double(std::max<std::int64_t>(1, way.tokens));
    table.Row({std::string(BatchingWords(way.kind)), fmt::format("{}", way.steps),
               fmt::format("{}", way.tokens), fmt::format("{:.0f} %", 100 * std::max(0.0, padding)),
               fmt::format("{}x{}", way.rows, way.length)});
  }
  table.WriteTo(w);
}

std::string_view NameOf(Batching::Kind kind) {
  switch (kind) {
    case Batching::Kind::kAsTheyCome:
      return "as_they_come";
    case Batching::Kind::kSorted:
      return "sorted";
    case Batching::Kind::kBuckets:
      return "buckets_of_64";
    case Batching::Kind::kTokens:
      return "token_budget";
    case Batching::Kind::kPacked:
      return "packed";
  }
  return "";
}

}  // namespace

std::string EpochHeadline(const EpochFacts& epoch) {
  std::string text = fmt::format("{} {}batches", epoch.complete ? "An epoch has" : "The first",
                                 fmt::format("{} ", epoch.batches));
  if (epoch.heaviest.empty()) return text + ".";
  return text + fmt::format("{} of {} different sizes; the heaviest is batch {} (from 0): {}.",
                            epoch.complete ? "" : " that could be looked at in time are",
                            epoch.kinds.size(), epoch.heaviest.front().batch,
                            ShapesText(epoch.heaviest.front().shapes));
}

void WriteEpoch(Writer& w, const EpochFacts& epoch) {
  WriteDistribution(w, epoch);
  WriteHeaviest(w, epoch);
  WriteBatchings(w, epoch);
}

Json EpochJson(const EpochFacts& epoch) {
  Json heaviest = Json::array();
  for (const EpochFacts::Heavy& heavy : epoch.heaviest) {
    heaviest.push_back(
        {{"batch", heavy.batch}, {"sizes", heavy.shapes}, {"samples", heavy.samples}});
  }
  Json bars = Json::array();
  for (const SizeBar& bar : Distribution(epoch)) bars.push_back({bar.from, bar.to, bar.count});
  Json ways = Json::array();
  const Batchings found = FindBatchings(epoch);
  for (const Batching& way : found.ways) {
    ways.push_back({{"batches", NameOf(way.kind)},
                    {"steps", way.steps},
                    {"tokens", way.tokens},
                    {"heaviest", {way.rows, way.length}}});
  }
  return {{"batches", epoch.batches},
          {"complete", epoch.complete},
          {"sizes", epoch.kinds.size()},
          {"heaviest", heaviest},
          {"distribution", bars},
          {"tokens_without_padding", found.tokens},
          {"batchings", ways}};
}

}  // namespace plimsoll
