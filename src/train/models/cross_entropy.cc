#include "train/models/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "train/checkpointing/autocast.h"

namespace plimsoll::train {
namespace {

using Options = LinearCrossEntropyOptions;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Wanted {
  bool hidden = false;
  bool weight = false;
  bool bias = false;

  bool any() const { return hidden || weight || bias; }
};

struct Results {
  /// Summed over the rows that count.
  at::Tensor loss;
  /// Of that sum; undefined where not wanted.
  at::Tensor hidden_gradient;
  at::Tensor weight_gradient;
  at::Tensor bias_gradient;
};

/// Rows at a time. Powers of two, which matrix products like.
std::int64_t Chunk(const Options& options, const Wanted& wanted, const at::Tensor& hidden,
                   const at::Tensor& weight) {
  const auto all = static_cast<std::uint64_t>(hidden.size(0));
  const auto vocabulary = static_cast<std::uint64_t>(weight.size(0));
  const auto width = static_cast<std::uint64_t>(weight.size(1));
  if (options.chunk > 0) return std::min(options.chunk, std::max<std::int64_t>(hidden.size(0), 1));
  std::uint64_t chunk = std::bit_ceil(all * width / std::max<std::uint64_t>(vocabulary, 1));
  // Each chunk reads and writes the weight's gradient, so the fewer the better. At `width` rows
  // their logits are as large as that gradient.
  if (wanted.weight) chunk = std::max(chunk, std::bit_floor(std::min(width, all / 4)));
  return static_cast<std::int64_t>(
      std::clamp<std::uint64_t>(chunk, 1, std::max<std::uint64_t>(all, 1)));
}

/// Goes through the rows; all its memory beside the results is one chunk's.
class Pass {
 public:
  Pass(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
       const at::Tensor& targets, const Options& options, const Wanted& wanted)
      : hidden_(hidden),
        bias_(bias),
        targets_(targets),
        options_(options),
        wanted_(wanted),
        chunk_(Chunk(options, wanted, hidden, weight)),
        sum_type_(hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat) {
    const AutocastState autocast = AutocastState::Of(hidden.device().type());
    const bool casts = autocast.enabled && sum_type_ != at::kDouble;
    product_type_ = casts ? autocast.dtype : hidden.scalar_type();
    weight_ = weight.to(product_type_);
    MakeResults(weight);
  }

  Results Run() {
    AutocastState off = AutocastState::Of(hidden_.device().type());
    off.enabled = false;
    const AutocastScope no_autocast(off);
    for (std::int64_t begin = 0; begin < hidden_.size(0); begin += chunk_) {
      RunRows(begin, std::min(chunk_, hidden_.size(0) - begin));
    }
    return std::move(results_);
  }

 private:
  void MakeResults(const at::Tensor& weight) {
    const auto sums = hidden_.options().dtype(sum_type_);
    results_.loss = at::zeros({}, sums);
    if (wanted_.hidden) results_.hidden_gradient = at::empty_like(hidden_);
    // Sums over all rows need fp32, whatever the products are made in.
    if (wanted_.weight) results_.weight_gradient = at::zeros(weight.sizes(), sums);
    if (wanted_.bias) results_.bias_gradient = at::zeros(bias_.sizes(), sums);
  }

  void RunRows(std::int64_t begin, std::int64_t count) {
    const at::Tensor targets = targets_.narrow(0, begin, count).unsqueeze(1);
    const at::Tensor counts = targets.ne(options_.ignore_index);
    const at::Tensor classes = at::where(counts, targets, 0);
    // An ignored row may hold infinities. Without them, nothing as large as the logits needs a
    // mask.
    const at::Tensor hidden =
        at::where(counts, hidden_.narrow(0, begin, count), 0).to(product_type_);
    at::Tensor logarithms = LogProbabilities(hidden);
    const at::Tensor of_target = logarithms.gather(1, classes);
    results_.loss.sub_(at::where(counts, of_target, 0).sum());
    if (!wanted_.any()) return;
    at::Tensor gradient = Exponentials(std::move(logarithms));
    gradient.scatter_(1, classes, of_target.expm1().to(gradient.scalar_type()));
    Backward(begin, hidden, counts, std::move(gradient));
  }

  at::Tensor LogProbabilities(const at::Tensor& hidden) const {
    at::Tensor logits = at::mm(hidden, weight_.t()).to(sum_type_);
    if (bias_.defined()) logits.add_(bias_);
    // In place: a row's elements are written where they were read, after all of the row was.
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    return logits;
  }

  at::Tensor Exponentials(at::Tensor logarithms) const {
    // A bias sums them up before they are rounded. The CPU would take a buffer more to round at
    // once.
    if (sum_type_ == product_type_ || wanted_.bias || logarithms.is_cpu()) {
      return logarithms.exp_();
    }
    at::Tensor rounded = at::empty(logarithms.sizes(), logarithms.options().dtype(product_type_));
    return at::exp_out(rounded, logarithms);
  }

  void Backward(std::int64_t begin, const at::Tensor& hidden, const at::Tensor& counts,
                at::Tensor gradient) {
    if (wanted_.bias) {
      results_.bias_gradient.addmv_(gradient.t(), counts.squeeze(1).to(sum_type_));
    }
    gradient = gradient.to(product_type_);
    if (wanted_.hidden) {
      at::Tensor rows = results_.hidden_gradient.narrow(0, begin, hidden.size(0));
      if (rows.scalar_type() == product_type_) {
        at::mm_out(rows, gradient, weight_);
      } else {
        rows.copy_(at::mm(gradient, weight_));
      }
      rows.masked_fill_(counts.logical_not(), 0);
    }
    // Ignored rows of `hidden` are zero.
    if (wanted_.weight) AddWeightGradient(hidden, gradient);
  }

  void AddWeightGradient(const at::Tensor& hidden, const at::Tensor& gradient) {
    if (product_type_ == sum_type_) {
      results_.weight_gradient.addmm_(gradient.t(), hidden);
      return;
    }
    // The product in the small type is no larger than the chunk's logits at any time.
    const std::int64_t vocabulary = gradient.size(1);
    const std::int64_t piece = std::max<std::int64_t>(1, gradient.numel() / hidden.size(1));
    for (std::int64_t begin = 0; begin < vocabulary; begin += piece) {
      const std::int64_t count = std::min(piece, vocabulary - begin);
      const at::Tensor part = at::mm(gradient.narrow(1, begin, count).t(), hidden);
      results_.weight_gradient.narrow(0, begin, count).add_(part);
    }
  }

  const at::Tensor& hidden_;
  const at::Tensor& bias_;
  const at::Tensor& targets_;
  const Options& options_;
  Wanted wanted_;
  std::int64_t chunk_;
  at::ScalarType sum_type_;
  at::ScalarType product_type_;
  at::Tensor weight_;
  Results results_;
};

/// 1, or one over the number of rows that count. Stays on the device: nothing waits for it.
at::Tensor Factor(const at::Tensor& targets, const at::Tensor& loss, const Options& options) {
  if (options.reduction == Options::Reduction::kSum) return at::ones_like(loss);
  return targets.ne(options.ignore_index).sum().to(loss.scalar_type()).reciprocal_();
}

struct Function : torch::autograd::Function<Function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& given_bias,
                            const at::Tensor& targets, const Options& options,
                            const Wanted& wanted) {
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    Results results = Pass(hidden, weight, bias, targets, options, wanted).Run();
    const at::Tensor factor = Factor(targets, results.loss, options);
    context->saved_data["factor"] = factor;
    context->saved_data["hidden"] = results.hidden_gradient;
    context->saved_data["weight"] = results.weight_gradient;
    context->saved_data["bias"] = results.bias_gradient;
    context->saved_data["weight_type"] = weight.scalar_type();
    context->saved_data["bias_type"] = bias.defined() ? bias.scalar_type() : at::kFloat;
    return results.loss.mul_(factor);
  }

  static variable_list backward(AutogradContext* context, const variable_list& outer) {
    TORCH_CHECK(!torch::autograd::GradMode::is_enabled(),
                "LinearCrossEntropy cannot be differentiated twice");
    TORCH_CHECK(context->saved_data.count("factor") == 1,
                "the gradients of LinearCrossEntropy were handed out already: backward through it "
                "works once");
    // The division by the number of rows waits until here, where a loss scale comes in: before it,
    // fp16 would lose small gradients.
    const at::Tensor factor = outer[0] * context->saved_data["factor"].toTensor();
    const auto take = [&](const char* name) {
      at::Tensor gradient = context->saved_data[name].toTensor();
      context->saved_data.erase(name);
      return gradient.defined() ? gradient.mul_(factor) : gradient;
    };
    const auto as = [&](at::Tensor gradient, const char* type) {
      return gradient.defined() ? gradient.to(context->saved_data[type].toScalarType()) : gradient;
    };
    context->saved_data.erase("factor");
    at::Tensor hidden = take("hidden");
    at::Tensor weight = as(take("weight"), "weight_type");
    at::Tensor bias = as(take("bias"), "bias_type");
    return {hidden, weight, bias, {}, {}, {}};
  }
};

void Check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
           const at::Tensor& targets) {
  TORCH_CHECK(hidden.dim() >= 1 && weight.dim() == 2 && hidden.size(-1) == weight.size(1),
              "hidden ", hidden.sizes(), " does not go with weight ", weight.sizes());
  TORCH_CHECK(hidden.sizes().slice(0, hidden.sizes().size() - 1) == targets.sizes(), "hidden ",
              hidden.sizes(), " does not go with targets ", targets.sizes());
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)), "bias ",
              bias.sizes(), " does not go with weight ", weight.sizes());
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& hidden, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                              const Options& options) {
  const at::Tensor given_bias = bias.value_or(at::Tensor());
  Check(hidden, weight, given_bias, targets);
  const auto wants = [](const at::Tensor& tensor) {
    return torch::autograd::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
  };
  const Wanted wanted{wants(hidden), wants(weight), wants(given_bias)};
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  const at::Tensor flat_targets = targets.reshape({-1});
  if (!wanted.any()) {
    const at::Tensor loss =
        Pass(rows, weight, given_bias, flat_targets, options, wanted).Run().loss;
    return loss * Factor(flat_targets, loss, options);
  }
  return Function::apply(rows, weight, bias, flat_targets, options, wanted);
}

}  // namespace plimsoll::train
