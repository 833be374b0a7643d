#include "job/file/from_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

namespace plimsoll {
namespace {

/// More sizes that no form explains than this share of those that change, and there is no answer.
constexpr double kMostDrawn = 0.5;

Bytes Requested(const RecordedRun& run, std::uint32_t allocation) {
  return run.ledger->allocations[allocation].requested;
}

/// The smallest and the largest batch of the points. Where there is one, a second that nobody may
/// ask about: a number has two.
std::pair<std::int64_t, std::int64_t> BatchesOf(std::span<const RecordedRun> runs) {
  const auto [least, most] = std::ranges::minmax_element(runs, {}, &RecordedRun::batch);
  return {least->batch, std::max(most->batch, least->batch + 1)};
}

/// Whether all points lie on one line that is not of one batch alone.
bool GrowTogether(std::span<const RecordedRun> runs) {
  const RecordedRun& first = runs.front();
  const auto other =
      std::ranges::find_if(runs, [&](const RecordedRun& run) { return run.batch != first.batch; });
  if (other == runs.end()) return false;
  return std::ranges::all_of(runs, [&](const RecordedRun& run) {
    return (run.batch - first.batch) * (other->length - first.length) ==
           (run.length - first.length) * (other->batch - first.batch);
  });
}

/// What sizes are products of, the likeliest first: exponents of batch and length.
constexpr std::pair<int, int> kProducts[] = {{1, 1}, {1, 0}, {0, 1}, {1, 2}, {0, 2}};

__int128 ProductAt(const std::pair<int, int>& product, const RecordedRun& run) {
  __int128 value = 1;
  for (int i = 0; i < product.first; ++i) value *= run.batch;
  for (int i = 0; i < product.second; ++i) value *= run.length;
  return value;
}

/// Where a stack says nothing, as in a backward that only C++ runs, the size tells what is no
/// counterpart: none grows more than the largest of the products, or less than the smallest.
SizeRatio RatioOf(const RecordedRun& small, const RecordedRun& large) {
  SizeRatio ratio;
  for (const auto& product : kProducts) {
    const double grows = static_cast<double>(ProductAt(product, large)) /
                         static_cast<double>(ProductAt(product, small));
    ratio.least = std::min(ratio.least, grows);
    ratio.most = std::max(ratio.most, grows);
  }
  return ratio;
}

/// Of one allocation, by point; nothing where a record has no counterpart.
using SizesAtPoints = std::vector<std::optional<Bytes>>;

bool HasAll(const SizesAtPoints& sizes) {
  return std::ranges::all_of(sizes, [](const auto& size) { return size.has_value(); });
}

std::int64_t AsCount(Bytes size) { return std::clamp<std::int64_t>(size, 0, kMostElements); }

/// By the product that sizes are in proportion to wherever there is one, what they are at every
/// point. Nothing where there is none, or one size alone.
std::optional<std::vector<std::int64_t>> InProportion(const SizesAtPoints& sizes,
                                                      std::span<const RecordedRun> runs) {
  std::vector<std::size_t> known;
  for (std::size_t p = 0; p < sizes.size(); ++p) {
    if (sizes[p]) known.push_back(p);
  }
  if (known.size() < 2) return std::nullopt;
  const __int128 size = AsCount(*sizes[known[0]]);
  for (const auto& product : kProducts) {
    const __int128 there = ProductAt(product, runs[known[0]]);
    const auto in_proportion = [&](std::size_t p) {
      return AsCount(*sizes[p]) * there == size * ProductAt(product, runs[p]);
    };
    if (!std::ranges::all_of(known, in_proportion)) continue;
    std::vector<std::int64_t> all;
    for (const RecordedRun& run : runs) {
      const __int128 at = size * ProductAt(product, run) / there;
      all.push_back(static_cast<std::int64_t>(std::min<__int128>(at, kMostElements)));
    }
    return all;
  }
  return std::nullopt;
}

/// At every point. A made-up size where a record has none would lead a form astray: then it is
/// what is in proportion, or `size` everywhere.
std::vector<std::int64_t> Completed(const SizesAtPoints& sizes, std::span<const RecordedRun> runs,
                                    Bytes size) {
  if (HasAll(sizes)) {
    std::vector<std::int64_t> all;
    for (const std::optional<Bytes>& one : sizes) all.push_back(AsCount(*one));
    return all;
  }
  return InProportion(sizes, runs).value_or(std::vector<std::int64_t>(sizes.size(), AsCount(size)));
}

/// The sizes of a run's allocations as functions of batch and length.
class RecordedSizes {
 public:
  explicit RecordedSizes(std::span<const RecordedRun> runs)
      : batches_(BatchesOf(runs)), forms_({"batch", "length"}, PointsOf(runs)) {}

  /// One value a point.
  Number Of(std::vector<std::int64_t> values) {
    const auto same = [&](std::int64_t value) { return value == values.front(); };
    if (std::ranges::all_of(values, same)) return Number::Always(values.front());
    // The blocks of a model repeat each other, and so do its steps.
    const auto known = known_.find(values);
    const FormId form = known != known_.end() ? known->second : forms_.Add(values);
    if (known == known_.end()) known_.emplace(std::move(values), form);
    ++changing_;
    if (!forms_.IsExplained(form)) ++drawn_;
    return {At(form, batches_.first), At(form, batches_.second), form};
  }

  const std::pair<std::int64_t, std::int64_t>& batches() const { return batches_; }
  /// How many of the sizes are not the same at all points, and how many of these no form explains.
  std::size_t changing() const { return changing_; }
  std::size_t drawn() const { return drawn_; }
  std::shared_ptr<const Forms> Take() { return std::make_shared<const Forms>(std::move(forms_)); }

 private:
  static std::vector<Extent> PointsOf(std::span<const RecordedRun> runs) {
    std::vector<Extent> points;
    for (const RecordedRun& run : runs) points.push_back({run.batch, run.length});
    return points;
  }
  std::int64_t At(FormId form, std::int64_t batch) const {
    const std::int64_t length = forms_.points().front()[1];
    return std::max<std::int64_t>(forms_.At(form, {batch, length}), 0);
  }

  std::pair<std::int64_t, std::int64_t> batches_;
  Forms forms_;
  std::map<std::vector<std::int64_t>, FormId> known_;
  std::size_t changing_ = 0;
  std::size_t drawn_ = 0;
};

std::optional<Error> CheckPoints(std::span<const RecordedRun> runs) {
  if (runs.size() < 3) {
    return Error{.message = "batch and length need three recorded runs or more",
                 .hint = "add one of the same job at another length"};
  }
  std::set<std::pair<std::int64_t, std::int64_t>> points;
  std::set<std::int64_t> lengths;
  for (const RecordedRun& run : runs) {
    const auto is_extent = [](std::int64_t n) { return n >= 1 && n <= Forms::kLargestExtent; };
    if (!is_extent(run.batch) || !is_extent(run.length)) {
      return Error{.message = fmt::format("there is no point {}x{}", run.batch, run.length),
                   .file = run.file,
                   .hint = fmt::format("batch and length are 1 to {}", Forms::kLargestExtent)};
    }
    if (!points.emplace(run.batch, run.length).second) {
      return Error{.message = fmt::format("another run is at batch {} and length {} too", run.batch,
                                          run.length),
                   .file = run.file,
                   .hint = "give one run for each point"};
    }
    lengths.insert(run.length);
  }
  if (lengths.size() > 1) return std::nullopt;
  return Error{.message = fmt::format("all runs have length {}", *lengths.begin()),
               .hint = "add one at another length; two runs at two batch sizes go with --batches"};
}

}  // namespace

Result<Job> JobFromTraces(const RecordedRun& small, const RecordedRun& large) {
  if (small.batch < 1 || large.batch <= small.batch) {
    return Error{.message = "the second record needs the larger batch", .file = large.file};
  }
  const std::vector<Made> made = InOrder(large);
  const Result<Counterparts> in_small =
      Compare(small, large, made, std::nullopt,
              "record the same job twice, with stacks, at two batch sizes");
  if (!in_small) return in_small.error();
  std::vector<Number> bytes;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Bytes size = made[i].size;
    const auto& other = (*in_small)[i];
    bytes.emplace_back(other ? Requested(small, *other) : size, size);
  }
  Job job = FollowRun(large, bytes);
  job.batches[0] = small.batch;
  job.batches[1] = large.batch;
  if (const std::ptrdiff_t unmatched = Missing(*in_small); unmatched > 0) {
    job.notes.push_back(fmt::format(
        "{} allocations are in {} alone (a library chose otherwise there); their size is taken "
        "as independent of the batch",
        unmatched, large.file));
  }
  return job;
}

Result<Job> JobFromTraces(std::span<const RecordedRun> runs) {
  if (std::optional<Error> error = CheckPoints(runs)) return *error;
  const RecordedRun& large = *std::ranges::max_element(runs, {}, [](const RecordedRun& run) {
    return std::pair(run.batch * run.length, run.length);
  });
  const std::vector<Made> made = InOrder(large);
  std::vector<SizesAtPoints> values(made.size());
  for (const RecordedRun& run : runs) {
    const Result<Counterparts> there =
        Compare(run, large, made, RatioOf(run, large),
                "record the same job at each point, with stacks, and give the points in the order "
                "of the files");
    if (!there) return there.error();
    for (std::size_t i = 0; i < made.size(); ++i) {
      const auto& other = (*there)[i];
      values[i].push_back(other ? std::optional(Requested(run, *other)) : std::nullopt);
    }
  }
  RecordedSizes sizes(runs);
  std::vector<Number> bytes;
  std::size_t missing = 0;
  for (std::size_t i = 0; i < made.size(); ++i) {
    if (!HasAll(values[i])) ++missing;
    bytes.push_back(sizes.Of(Completed(values[i], runs, made[i].size)));
  }
  // What goes through any points says nothing between them: most likely one is told wrongly.
  if (double(sizes.drawn()) > kMostDrawn * double(sizes.changing())) {
    return Error{.message = fmt::format("{} of the {} sizes that change from record to record are "
                                        "no sum of batch, length, their product and squares",
                                        sizes.drawn(), sizes.changing()),
                 .file = large.file,
                 .hint =
                     "check batch and length of each file, in the order of the files, or add a "
                     "record at another point"};
  }
  Job job = FollowRun(large, bytes);
  job.batches[0] = sizes.batches().first;
  job.batches[1] = sizes.batches().second;
  job.length = runs.front().length;
  if (missing > 0) {
    job.notes.push_back(fmt::format(
        "{} allocations of {} are not in every other record (a library chose otherwise there); "
        "their size goes with the product that those records tell which have it, and is else "
        "taken as independent of batch and length",
        missing, large.file));
  }
  if (sizes.drawn() > 0) {
    job.notes.push_back(fmt::format(
        "{} of the {} sizes that change from record to record are no sum of batch, length, their "
        "product and squares; they are drawn through the recorded points",
        sizes.drawn(), sizes.changing()));
  }
  if (GrowTogether(runs)) {
    job.notes.push_back(
        "batch and length grow together in all records: what depends on one of them may be told "
        "for the other; a record at another pair tells them apart");
  }
  job.forms = sizes.Take();
  return job;
}

}  // namespace plimsoll
