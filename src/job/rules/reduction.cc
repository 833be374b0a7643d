#include "job/rules/reduction.h"

#include <algorithm>
#include <array>
#include <vector>

#include "job/calls/arithmetic.h"
#include "job/rules/common.h"
#include "job/rules/rules.h"

namespace plimsoll {
namespace {

struct Dim {
  std::int64_t stride = 0;
  std::int64_t size = 1;
};

/// The input as the kernel's iterator sees it: dimensions of size 1 are gone, and neighbours that
/// lie one after the other in memory are one.
struct Iteration {
  std::vector<Dim> reduced;
  std::vector<Dim> kept;
};

std::vector<Dim> Coalesce(const std::vector<Dim>& dims) {
  std::vector<Dim> merged;
  for (const Dim& dim : dims) {
    if (!merged.empty() && merged.back().stride * merged.back().size == dim.stride) {
      merged.back().size *= dim.size;
    } else {
      merged.push_back(dim);
    }
  }
  return merged;
}

Iteration Iterate(const Layout& input, std::span<const std::int64_t> dims) {
  const auto rank = static_cast<std::int64_t>(input.dims());
  std::vector<char> is_reduced(input.dims(), dims.empty());
  for (const std::int64_t dim : dims) {
    const std::int64_t at = dim < 0 ? dim + rank : dim;
    if (at >= 0 && at < rank) is_reduced[static_cast<std::size_t>(at)] = true;
  }
  Iteration it;
  for (std::size_t d = input.dims(); d-- > 0;) {
    if (input.sizes[d] == 1) continue;
    (is_reduced[d] ? it.reduced : it.kept).push_back({input.strides[d], input.sizes[d]});
  }
  const auto by_stride = [](const Dim& a, const Dim& b) { return a.stride < b.stride; };
  std::stable_sort(it.reduced.begin(), it.reduced.end(), by_stride);
  std::stable_sort(it.kept.begin(), it.kept.end(), by_stride);
  return {.reduced = Coalesce(it.reduced), .kept = Coalesce(it.kept)};
}

std::int64_t Count(const std::vector<Dim>& dims) {
  std::int64_t n = 1;
  for (const Dim& dim : dims) n *= dim.size;
  return n;
}

/// How many outputs a thread does at once: four, if everything divides.
std::int64_t OutputsAtOnce(const Iteration& it) {
  std::int64_t vec = 4;
  const auto divide = [&vec](std::int64_t n) {
    while (n % vec != 0) vec /= 2;
  };
  divide(it.kept.front().size);
  for (const Dim& dim : it.reduced) divide(dim.stride);
  for (std::size_t i = 1; i < it.kept.size(); ++i) divide(it.kept[i].stride);
  return vec;
}

}  // namespace

// The arithmetic of ATen/native/cuda/Reduce.cuh (setReduceConfig). On an H200 it gives the
// sizes of all the reductions in tests/data/operators.
ReductionTemps ReductionTemporaries(const Layout& input, std::span<const std::int64_t> dims,
                                    const Accumulator& accumulator, const Gpu& gpu) {
  const Iteration it = Iterate(input, dims);
  const std::int64_t inputs = Count(it.reduced);  // of one output
  const std::int64_t outputs = Count(it.kept);
  if (inputs <= 1 || outputs <= 0 || gpu.multiprocessors <= 0) return {};

  const bool along_inputs = it.kept.empty() || it.reduced.front().stride < it.kept.front().stride;
  std::int64_t dim0 = along_inputs ? inputs : outputs;
  const std::int64_t dim1 = along_inputs ? outputs : inputs;
  std::int64_t vec = 1;
  if ((along_inputs ? it.reduced : it.kept).front().stride == 1) {
    const bool flat = it.reduced.size() + it.kept.size() == 1;
    if (!along_inputs) {
      vec = OutputsAtOnce(it);
      dim0 /= vec;
    } else if (dim0 > 128 && flat && accumulator.vectorised) {
      dim0 /= 4;
    }
  }

  const std::int64_t most_threads = 512 / vec;
  const std::int64_t power0 = dim0 < most_threads ? FloorPow2(dim0) : most_threads;
  const std::int64_t power1 = dim1 < most_threads ? FloorPow2(dim1) : most_threads;
  std::int64_t width = std::min<std::int64_t>(power0, 32);
  const std::int64_t height = std::min(power1, most_threads / width);
  width = std::min(power0, most_threads / height);

  std::int64_t over_inputs = along_inputs ? width : 1;
  std::int64_t over_outputs = along_inputs ? 1 : width;
  const bool rows_share = CeilDiv(inputs, over_inputs) >= std::min<std::int64_t>(height * 16, 256);
  (rows_share ? over_inputs : over_outputs) *= height;
  const std::int64_t values = CeilDiv(inputs, over_inputs);  // each thread's
  const std::int64_t grid = CeilDiv(outputs / vec, over_outputs);
  const std::int64_t target =
      gpu.multiprocessors * (gpu.threads_per_multiprocessor / (width * height));
  if (!rows_share || values < 256 || grid > target) return {};
  const std::int64_t blocks = std::max(std::min(CeilDiv(target, grid), CeilDiv(values, 16)),
                                       CeilDiv(values, 256));  // that work on one output
  if (blocks <= 1) return {};
  return {.staging = accumulator.bytes * outputs * blocks * (along_inputs ? 1 : width * vec),
          .semaphores = 4 * grid};
}

void Reduce(Emitter& emit, const Layout& input, std::span<const std::int64_t> dims,
            const Accumulator& accumulator) {
  const ReductionTemps temps = ReductionTemporaries(input, dims, accumulator, emit.gpu());
  const Slot staging = emit.Take(temps.staging);
  const Slot semaphores = emit.Take(temps.semaphores);
  emit.Give(semaphores);
  emit.Give(staging);
}

namespace {

/// Sums add up in fp32 whatever floats they get, and in int64 whatever integers; a reduction of
/// bools or smaller integers first makes a copy in int64 (8 rows: the backward of amax).
void SumRule(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  if (!input) return;
  const std::vector<std::int64_t> dims = call.IntsArg(1);
  Accumulator accumulator;
  Slot copy;
  Layout as = **input;
  switch (as.dtype) {
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kComplex64:
      accumulator.bytes = 8;
      break;
    case DType::kComplex128:
      accumulator.bytes = 16;
      break;
    case DType::kBool:
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUInt8:
      accumulator.bytes = 8;
      copy = emit.Take(as.Numel() * 8);
      break;
    default:
      break;
  }
  Reduce(emit, as, dims, accumulator);
  emit.Give(copy);
}

void Norm(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  // linalg_vector_norm(self, ord, dim)
  if (input) Reduce(emit, **input, call.IntsArg(2));
}

/// Welford's: a mean, a sum of squares and two counts. (8 rows)
void Variance(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  if (input) Reduce(emit, **input, call.IntsArg(1), {.bytes = 16, .vectorised = false});
}

/// Compares in the type itself. (8 rows)
void Extremum(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  if (!input) return;
  const Layout& layout = **input;
  Reduce(emit, layout, call.IntsArg(1), {.bytes = ElementSize(layout.dtype)});
}

/// With the place where it was found: a value and an int64. (8 rows, none large enough to need it)
void ExtremumWithPlace(const Call& call, Emitter& emit) {
  MakeAll(call, emit);
  const auto input = call.TensorArg(0);
  if (input) Reduce(emit, **input, call.IntsArg(1), {.bytes = 16});
}

/// The largest of each row (with infinities taken out), exp(x - largest), and its sum: the result.
/// (8 rows)
void LogSumExp(const Call& call, Emitter& emit) {
  const auto input = call.TensorArg(0);
  if (!input || call.fresh() == 0) return MakeAll(call, emit);
  const std::vector<std::int64_t> dims = call.IntsArg(1);
  const Layout& layout = **input;
  const Bytes el = ElementSize(layout.dtype);
  const Bytes row = call.FreshBytes(0);
  const Slot largest = emit.Take(row);
  Reduce(emit, layout, dims, {.bytes = el});
  const Slot absolute = emit.Take(row);
  const Slot infinite = emit.Take(row / el);
  emit.Give(infinite);
  emit.Give(absolute);
  const Slot shifted = emit.Take(layout.bytes());
  emit.Make(0);
  Reduce(emit, layout, dims);
  emit.Give(shifted);
  emit.Give(largest);
}

constexpr std::array kReductionRules = std::to_array<RuleEntry>({
    {"sum", SumRule},
    {"mean", SumRule},
    {"nansum", SumRule},
    {"prod", SumRule},
    {"linalg_vector_norm", Norm},
    {"norm", Norm},
    {"var", Variance},
    {"std", Variance},
    {"var_mean", Variance},
    {"std_mean", Variance},
    {"amax", Extremum},
    {"amin", Extremum},
    {"all", Extremum},
    {"any", Extremum},
    {"max", ExtremumWithPlace},
    {"min", ExtremumWithPlace},
    {"argmax", ExtremumWithPlace},
    {"argmin", ExtremumWithPlace},
    {"logsumexp", LogSumExp},
});

}  // namespace

std::span<const RuleEntry> ReductionRules() { return kReductionRules; }

}  // namespace plimsoll
