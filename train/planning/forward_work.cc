#include "train/planning/forward_work.h"

#include <memory>
#include <string_view>
#include <utility>

namespace plimsoll::train {
namespace {

using Inputs = c10::ArrayRef<const c10::IValue>;

thread_local FlopCounter* counting = nullptr;

double Product(const at::Tensor& a, const at::Tensor& b) {
  // [.., m, k] by [.., k, n].
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

double Convolution(Inputs inputs) {
  const at::Tensor& input = inputs[0].toTensor();
  const at::Tensor& weight = inputs[1].toTensor();
  const auto stride = inputs[3].toIntVector();
  const auto padding = inputs[4].toIntVector();
  const auto dilation = inputs[5].toIntVector();
  const bool transposed = inputs[6].toBool();
  double places = static_cast<double>(input.size(0));
  for (std::int64_t i = 2; i < input.dim(); ++i) {
    const auto at = [&](const std::vector<std::int64_t>& list) {
      return list.size() > 1 ? list[static_cast<std::size_t>(i - 2)] : list.at(0);
    };
    const std::int64_t kernel = at(dilation) * (weight.size(i) - 1) + 1;
    const std::int64_t out = (input.size(i) + 2 * at(padding) - kernel) / at(stride) + 1;
    places *= static_cast<double>(transposed ? input.size(i) : out);
  }
  return 2.0 * places * static_cast<double>(weight.numel());
}

double Attention(Inputs inputs) {
  // [.., positions, width] of queries; scores, then their sum over the values.
  const at::Tensor& query = inputs[0].toTensor();
  const at::Tensor& key = inputs[1].toTensor();
  return 4.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(-2));
}

/// Null for what is not counted. Only what others are made of: at::linear calls one of these.
using Formula = double (*)(Inputs inputs);
Formula FormulaOf(std::string_view name) {
  static constexpr std::pair<std::string_view, Formula> kFormulas[] = {
      {"aten::mm", [](Inputs in) { return Product(in[0].toTensor(), in[1].toTensor()); }},
      {"aten::bmm", [](Inputs in) { return Product(in[0].toTensor(), in[1].toTensor()); }},
      {"aten::addmm", [](Inputs in) { return Product(in[1].toTensor(), in[2].toTensor()); }},
      {"aten::baddbmm", [](Inputs in) { return Product(in[1].toTensor(), in[2].toTensor()); }},
      {"aten::convolution", Convolution},
      {"aten::_scaled_dot_product_flash_attention", Attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", Attention},
      {"aten::_scaled_dot_product_efficient_attention", Attention},
      {"aten::_scaled_dot_product_cudnn_attention", Attention}};
  for (const auto& [known, formula] : kFormulas) {
    if (known == name) return formula;
  }
  return nullptr;
}

}  // namespace

ForwardWork ForwardWork::operator-(const ForwardWork& earlier) const {
  return {.flops = flops - earlier.flops,
          .half_flops = half_flops - earlier.half_flops,
          .made = made - earlier.made,
          .requests = requests - earlier.requests};
}

DeviceRates RatesOf(c10::Device device) {
  if (device.is_cuda()) return CudaRatesOf(device.index() < 0 ? 0 : device.index());
  // A few cores of any machine.
  return {.flops = 50e3, .half_flops = 50e3, .bytes = 10e3, .per_request = 1};
}

double Microseconds(const ForwardWork& work, const DeviceRates& rates) {
  // What is made is written once and, with what goes into it, read about twice.
  constexpr double kTouched = 3;
  return work.flops / rates.flops + work.half_flops / rates.half_flops +
         kTouched * static_cast<double>(work.made) / rates.bytes +
         rates.per_request * static_cast<double>(work.requests);
}

FlopCounter::FlopCounter() {
  TORCH_CHECK(counting == nullptr, "operations are counted already on this thread");
  counting = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&Count).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

FlopCounter::~FlopCounter() {
  at::removeCallback(handle_);
  counting = nullptr;
}

std::unique_ptr<at::ObserverContext> FlopCounter::Count(const at::RecordFunction& call) {
  const Formula formula = counting != nullptr ? FormulaOf(call.name()) : nullptr;
  if (formula == nullptr) return nullptr;
  const Inputs inputs = call.inputs();
  double& sum = c10::isReducedFloatingType(inputs[0].toTensor().scalar_type())
                    ? counting->half_flops_
                    : counting->flops_;
  sum += formula(inputs);
  return nullptr;
}

}  // namespace plimsoll::train
