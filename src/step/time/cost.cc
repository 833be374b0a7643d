#include "step/time/cost.h"

#include <algorithm>
#include <cmath>

namespace plimsoll {
namespace {

/// Shares of the peak that real kernels reach, and what the shortest kernel takes. Rough: set by
/// five timed runs of one model on an H200 (docs/prediction.md, "Time").
constexpr double kPlainShare = 0.70;
constexpr double kTensorCoreShare = 0.42;
constexpr double kBandwidthShare = 0.55;
constexpr double kLeastMicroseconds = 6;
/// Of the plain rate, for gradients in 16 bit whose workspace is refused: 118 calls on an H200
/// (tests/data/operators/refused.jsonl.xz) take 15.8 times as long as with one. The plain rate
/// itself is right for the others: it says 4.4 times in fp32 and 8.9 in 16 bit; measured are 4.2
/// and 4.7 (forward, backward), and 7.2 (forward).
constexpr double kRefusedHalfBackwardShare = 0.56;

std::string_view BaseName(std::string_view op) {
  const std::size_t first = op.find('.');
  if (first != std::string_view::npos) op.remove_prefix(first + 1);
  return op.substr(0, op.find('.'));
}

double Product(const std::vector<std::int64_t>& sizes, std::size_t from = 0) {
  double product = 1;
  for (std::size_t i = from; i < sizes.size(); ++i) product *= double(sizes[i]);
  return product;
}

/// m·k times k·n, with batches: twice the elements of the result times the inner size.
double MatrixFlops(const Call& call, std::size_t left) {
  const auto a = call.TensorArg(left);
  if (!a || a->layout->dims() < 2 || call.results() == 0) return 0;
  return 2.0 * double(call.Result(0)->Numel()) * double(a->layout->sizes.back());
}

double ConvolutionFlops(const Layout& output, const Layout& weight) {
  // Each output element sums over the weights of one output channel.
  return 2.0 * double(output.Numel()) * Product(weight.sizes, 1);
}

double AttentionFlops(const Call& call, std::size_t query) {
  const auto q = call.TensorArg(query);
  const auto k = call.TensorArg(query + 1);
  if (!q || !k || q->layout->dims() < 2 || k->layout->dims() < 2) return 0;
  return 4.0 * double(q->layout->Numel()) * double(k->layout->sizes[k->layout->dims() - 2]);
}

void AddTraffic(const Call& call, Cost& cost) {
  const auto add = [&](const std::optional<Tensor>& t) {
    if (t && t->storage != kElsewhere) cost.bytes += double(t->layout->bytes());
  };
  for (std::size_t i = 0; i < call.args(); ++i) {
    add(call.TensorArg(i));
    for (const Tensor& t : call.TensorsArg(i)) add(t);
  }
  for (std::size_t i = 0; i < call.results(); ++i) add(call.Result(i));
}

double PlainRate(const Gpu& gpu) { return gpu.rates.fp32 * kPlainShare; }

/// What is reached, in FLOP/s.
double RateOf(const Cost& cost, const Gpu& gpu) {
  std::optional<double> tensor_cores;
  if (cost.dtype == DType::kFloat16) tensor_cores = gpu.rates.fp16;
  if (cost.dtype == DType::kBFloat16) tensor_cores = gpu.rates.bf16;
  // PyTorch lets cuDNN use TF32 unless told otherwise, and cuBLAS not.
  if (cost.dtype == DType::kFloat32 && cost.convolution) tensor_cores = gpu.rates.tf32;
  return tensor_cores ? *tensor_cores * kTensorCoreShare : PlainRate(gpu);
}

/// Seconds. Without a workspace cuDNN cannot bring the data into the layout that tensor cores want:
/// what is refused one goes at the plain rate, or half of it. An estimate: docs/prediction.md,
/// "Time", has what it was held against.
double ArithmeticTime(const Cost& cost, const Gpu& gpu, int refused) {
  if (!cost.matrix) return 0;
  const double rate = RateOf(cost, gpu);
  const double share =
      double(std::min(refused, cost.directions)) / double(std::max(1, cost.directions));
  const bool half_backward = IsHalf(cost.dtype) && cost.backward;
  const double slow =
      std::min(rate, PlainRate(gpu) * (half_backward ? kRefusedHalfBackwardShare : 1));
  return cost.flops * ((1 - share) / rate + share / slow);
}

}  // namespace

Cost CostOf(const Call& call) {
  Cost cost;
  const std::string_view name = BaseName(call.op());
  const bool in_place = name.ends_with('_');
  if (call.fresh() == 0 && !in_place) return cost;
  AddTraffic(call, cost);
  if (call.results() > 0) cost.dtype = call.Result(0)->dtype;
  if (name == "mm" || name == "bmm") {
    cost.flops = MatrixFlops(call, 0);
  } else if (name == "addmm" || name == "baddbmm") {
    cost.flops = MatrixFlops(call, 1);
  } else if (name == "convolution" && call.results() > 0) {
    const auto weight = call.TensorArg(1);
    if (weight) cost.flops = ConvolutionFlops(*call.Result(0), **weight);
    cost.convolution = true;
  } else if (name == "convolution_backward") {
    const auto gradient = call.TensorArg(0);
    const auto weight = call.TensorArg(2);
    const std::vector<bool> wanted = call.BoolsArg(10);
    const auto directions = std::count(
        wanted.begin(), wanted.begin() + std::min<std::ptrdiff_t>(2, std::ssize(wanted)), true);
    if (gradient && weight) {
      cost.flops = ConvolutionFlops(**gradient, **weight) * double(directions);
    }
    cost.directions = static_cast<int>(directions);
    cost.backward = true;
    cost.convolution = true;
  } else if (name == "attention") {
    cost.flops = AttentionFlops(call, 0);
  } else if (name == "attention_backward") {
    cost.flops = 2.5 * AttentionFlops(call, 1);
  }
  cost.matrix = cost.flops > 0;
  return cost;
}

double StepMicroseconds(const Step& step, const Variant& variant, const Gpu& gpu,
                        std::int64_t batch, const RefusedCalls& refused) {
  const AtBatch at(step, batch);
  double sum = 0;
  for (const StepEvent& event : variant.events) {
    if (event.kind == StepEvent::Kind::kStep) sum = 0;
    if (event.kind != StepEvent::Kind::kCall) continue;
    const Cost cost = CostOf(Call(variant.calls[event.index], at, Phase::kOther));
    if (cost.bytes <= 0) continue;
    const auto found = refused.find(event.index);
    const double arithmetic = ArithmeticTime(cost, gpu, found == refused.end() ? 0 : found->second);
    const double traffic = cost.bytes / (gpu.bandwidth * kBandwidthShare);
    sum += std::max(kLeastMicroseconds, 1e6 * std::max(arithmetic, traffic));
  }
  return sum;
}

}  // namespace plimsoll
