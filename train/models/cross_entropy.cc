#include "train/models/cross_entropy.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/types.h>

#include <algorithm>
#include <bit>
#include <cmath>
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
  // The same on all ranks: each chunk is something that they do together.
  const auto vocabulary =
      static_cast<std::uint64_t>(options.split ? options.split->most() : weight.size(0));
  const auto width = static_cast<std::uint64_t>(weight.size(1));
  if (options.chunk > 0) return std::min(options.chunk, std::max<std::int64_t>(hidden.size(0), 1));
  std::uint64_t chunk = std::bit_ceil(all * width / std::max<std::uint64_t>(vocabulary, 1));
  // Each chunk reads and writes the weight's gradient, so the fewer the better. At `width` rows
  // their logits are as large as that gradient.
  if (wanted.weight) chunk = std::max(chunk, std::bit_floor(std::min(width, all / 4)));
  return static_cast<std::int64_t>(
      std::clamp<std::uint64_t>(chunk, 1, std::max<std::uint64_t>(all, 1)));
}

at::ScalarType SumType(const at::Tensor& hidden) {
  return hidden.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// What a row's loss is divided by in the end, and how much of it each part is. On the device:
/// nothing waits for them.
struct Factors {
  /// Of the whole sum.
  at::Tensor all;
  /// Of the z-loss within the sum: its mean is over rows, where that of the rest may be over
  /// weights.
  at::Tensor z;
};

Factors FactorsOf(const at::Tensor& targets, const Options& options, at::ScalarType type) {
  const at::Tensor one = at::ones({}, targets.options().dtype(type));
  if (options.reduction == Options::Reduction::kSum) return {one, one};
  const at::Tensor counts = targets.ne(options.ignore_index);
  const at::Tensor rows = counts.sum().to(type);
  if (!options.class_weights) return {rows.reciprocal(), one};
  const at::Tensor weights =
      options.class_weights->detach().to(type).index_select(0, at::where(counts, targets, 0));
  const at::Tensor sum = at::where(counts, weights, 0).sum();
  return {sum.reciprocal(), sum / rows};
}

/// Goes through the rows; all its memory beside the results is one chunk's.
class Pass {
 public:
  Pass(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
       const at::Tensor& targets, const Options& options, const Wanted& wanted,
       const Factors& factors)
      : hidden_(hidden),
        bias_(bias),
        targets_(targets),
        options_(options),
        wanted_(wanted),
        factors_(factors),
        chunk_(Chunk(options, wanted, hidden, weight)),
        sum_type_(SumType(hidden)),
        classes_(options.split ? options.split->all() : weight.size(0)) {
    const AutocastState autocast = AutocastState::Of(hidden.device().type());
    const bool casts = autocast.enabled && sum_type_ != at::kDouble;
    product_type_ = casts ? autocast.dtype : hidden.scalar_type();
    weight_ = weight.to(product_type_);
    if (options.class_weights) {
      class_weights_ = options.class_weights->detach().to(sum_type_);
      own_class_weights_ =
          class_weights_.narrow(0, options.split ? options.split->begin() : 0, weight.size(0));
    }
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
    at::Tensor logarithms = Logits(hidden);
    Row row = options_.split ? NormalizeSplit(classes, logarithms) : Normalize(classes, logarithms);
    if (class_weights_.defined()) {
      row.weight = class_weights_.index_select(0, classes.squeeze(1)).unsqueeze(1);
    }
    results_.loss.add_(at::where(counts, LossOf(row, logarithms), 0).sum());
    if (!wanted_.any()) return;
    Backward(begin, hidden, counts, GradientOf(row, std::move(logarithms)));
  }

  /// Of the chunk's rows: a column each, or undefined where it is not needed.
  struct Row {
    /// Of the target, among this rank's.
    at::Tensor classes;
    /// Whether it is one of them; undefined: all are.
    at::Tensor here;
    /// The logarithm of the target's probability.
    at::Tensor of_target;
    at::Tensor log_sum;
    /// Of the target's class.
    at::Tensor weight;
  };

  /// Makes logarithms of probabilities of the logits.
  Row Normalize(const at::Tensor& classes, at::Tensor& logits) const {
    const bool needs_log_sum = HasZ() || options_.soft_cap > 0;
    const at::Tensor logit_of_target = needs_log_sum ? logits.gather(1, classes) : at::Tensor();
    // In place: a row's elements are written where they were read, after all of the row was.
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    Row row{.classes = classes, .of_target = logits.gather(1, classes)};
    if (needs_log_sum) row.log_sum = logit_of_target - row.of_target;
    return row;
  }

  /// The same where other ranks have the other classes, with one exchange of three numbers a row.
  Row NormalizeSplit(const at::Tensor& all_classes, at::Tensor& logits) const {
    const std::int64_t begin = options_.split->begin();
    const std::int64_t end = begin + logits.size(1);
    // The first and the last rank take those that are no class at all, and throw.
    at::Tensor here = at::ones_like(all_classes, at::kBool);
    if (begin > 0) here.logical_and_(all_classes >= begin);
    if (end < classes_) here.logical_and_(all_classes < end);
    Row row{.classes = at::where(here, all_classes - begin, 0), .here = here};
    const at::Tensor own_of_target = at::where(here, logits.gather(1, row.classes), 0);
    // Sums are taken as seen from the largest logit, beside which nothing is lost.
    const at::Tensor own_largest = logits.amax(1, /*keepdim=*/true);
    at::_log_softmax_out(logits, logits, 1, /*half_to_float=*/false);
    const at::Tensor own_rest = logits.amax(1, /*keepdim=*/true).neg_();
    const at::Tensor ranks =
        options_.split->Gather(at::stack({own_largest, own_rest, own_of_target}));
    const at::Tensor largest = ranks.select(1, 0).amax(0);
    const at::Tensor rest = (ranks.select(1, 0) - largest + ranks.select(1, 1)).logsumexp(0);
    row.log_sum = largest + rest;
    row.of_target = ranks.select(1, 2).sum(0) - largest - rest;
    logits.add_(own_largest - largest + own_rest - rest);
    return row;
  }

  /// Into the column of each row's target, where it is.
  static void WriteAtTarget(const Row& row, const at::Tensor& value, at::Tensor& gradient) {
    at::Tensor written = value.to(gradient.scalar_type());
    if (row.here.defined()) {
      written = at::where(row.here, written, gradient.gather(1, row.classes));
    }
    gradient.scatter_(1, row.classes, written);
  }

  bool HasZ() const { return options_.z_loss > 0; }
  /// Of a target that is spread over all classes, what each gets.
  double Share() const { return options_.label_smoothing / static_cast<double>(classes_); }

  at::Tensor Logits(const at::Tensor& hidden) const {
    at::Tensor logits = at::mm(hidden, weight_.t()).to(sum_type_);
    if (bias_.defined()) logits.add_(bias_);
    if (options_.soft_cap > 0) logits.div_(options_.soft_cap).tanh_().mul_(options_.soft_cap);
    return logits;
  }

  at::Tensor LossOf(const Row& row, const at::Tensor& logarithms) const {
    at::Tensor loss = row.of_target.neg();
    if (row.weight.defined()) loss.mul_(row.weight);
    if (options_.label_smoothing > 0) {
      at::Tensor spread = class_weights_.defined()
                              ? at::mv(logarithms, own_class_weights_).unsqueeze(1)
                              : logarithms.sum(1, /*keepdim=*/true);
      if (options_.split) spread = options_.split->Gather(spread).sum(0);
      loss.mul_(1 - options_.label_smoothing).sub_(spread, Share());
    }
    if (HasZ()) loss.add_(row.log_sum.square().mul_(factors_.z), options_.z_loss);
    return loss;
  }

  /// Of the rows' losses by the logits. Where a row's target distribution is t, weighted, with the
  /// sum T, that is (T + z) p - t. Takes the memory of the logarithms.
  at::Tensor GradientOf(const Row& row, at::Tensor logarithms) const {
    if (IsPlain()) {
      at::Tensor gradient = Exponentials(std::move(logarithms));
      WriteAtTarget(row, row.of_target.expm1(), gradient);
      return gradient;
    }
    const at::Tensor slope = Slope(row, logarithms);
    const double kept = 1 - options_.label_smoothing;
    const at::Tensor weight = row.weight.defined() ? row.weight : at::ones_like(row.of_target);
    const at::Tensor weights_sum =
        class_weights_.defined() ? class_weights_.sum() : at::full_like(factors_.z, classes_);
    const at::Tensor sum = weight * kept + weights_sum * Share();
    const at::Tensor of_z =
        HasZ() ? row.log_sum * factors_.z * (2 * options_.z_loss) : at::zeros_like(sum);
    // As T (p - 1) + (T - t) + z p: p - 1 would lose what is small beside 1.
    const at::Tensor at_target =
        sum * row.of_target.expm1() + (weights_sum - weight) * Share() + of_z * row.of_target.exp();
    at::Tensor gradient = logarithms.exp_().mul_(sum + of_z);
    if (class_weights_.defined()) {
      gradient.sub_(own_class_weights_, Share());
    } else {
      gradient.sub_(Share());
    }
    WriteAtTarget(row, at_target, gradient);
    return slope.defined() ? gradient.mul_(slope) : gradient;
  }

  /// Of the soft cap at each logit; undefined where there is none.
  at::Tensor Slope(const Row& row, const at::Tensor& logarithms) const {
    if (options_.soft_cap == 0) return {};
    at::Tensor slope = (logarithms + row.log_sum).div_(options_.soft_cap).square_();
    return slope.neg_().add_(1);
  }

  bool IsPlain() const {
    return !HasZ() && options_.label_smoothing == 0 && options_.soft_cap == 0 &&
           !class_weights_.defined();
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
  const Factors& factors_;
  std::int64_t chunk_;
  at::ScalarType sum_type_;
  at::ScalarType product_type_;
  /// Of all ranks.
  std::int64_t classes_;
  at::Tensor weight_;
  at::Tensor class_weights_;
  at::Tensor own_class_weights_;
  Results results_;
};

struct Function : torch::autograd::Function<Function> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const at::Tensor& weight, const std::optional<at::Tensor>& given_bias,
                            const at::Tensor& targets, const Options& options,
                            const Wanted& wanted) {
    const at::Tensor bias = given_bias.value_or(at::Tensor());
    const Factors factors = FactorsOf(targets, options, SumType(hidden));
    Results results = Pass(hidden, weight, bias, targets, options, wanted, factors).Run();
    context->saved_data["factor"] = factors.all;
    context->saved_data["hidden"] = results.hidden_gradient;
    context->saved_data["weight"] = results.weight_gradient;
    context->saved_data["bias"] = results.bias_gradient;
    context->saved_data["weight_type"] = weight.scalar_type();
    context->saved_data["bias_type"] = bias.defined() ? bias.scalar_type() : at::kFloat;
    return results.loss.mul_(factors.all);
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

void CheckShapes(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& bias,
                 const at::Tensor& targets) {
  TORCH_CHECK(hidden.defined() && weight.defined() && targets.defined(),
              "the cross-entropy needs hidden states, a weight and targets");
  TORCH_CHECK(hidden.dim() >= 1 && weight.dim() == 2 && hidden.size(-1) == weight.size(1),
              "hidden ", hidden.sizes(), " does not go with weight ", weight.sizes());
  TORCH_CHECK(hidden.sizes().slice(0, hidden.sizes().size() - 1) == targets.sizes(), "hidden ",
              hidden.sizes(), " does not go with targets ", targets.sizes());
  TORCH_CHECK(targets.scalar_type() == at::kLong, "targets must be of int64");
  TORCH_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == weight.size(0)),
              "the bias does not go with weight ", weight.sizes());
}

void CheckOptions(const Options& options, const at::Tensor& weight) {
  TORCH_CHECK(options.chunk >= 0, "a chunk of ", options.chunk, " rows cannot be");
  TORCH_CHECK(options.label_smoothing >= 0 && options.label_smoothing <= 1, "label smoothing of ",
              options.label_smoothing, " is not in [0, 1]");
  TORCH_CHECK(options.z_loss >= 0 && std::isfinite(options.z_loss), "a z-loss of ", options.z_loss,
              " is not a finite number from 0 on");
  TORCH_CHECK(options.soft_cap >= 0 && std::isfinite(options.soft_cap), "a soft cap of ",
              options.soft_cap, " is not a finite number from 0 on");
  if (!options.class_weights) return;
  const at::Tensor& weights = *options.class_weights;
  const std::int64_t classes = options.split ? options.split->all() : weight.size(0);
  TORCH_CHECK(weights.defined() && weights.dim() == 1 && weights.size(0) == classes &&
                  weights.is_floating_point() && weights.device() == weight.device(),
              "class weights must be ", classes,
              " floating point numbers on the device of the weight");
}

}  // namespace

at::Tensor LinearCrossEntropy(const at::Tensor& given_hidden, const at::Tensor& weight,
                              const std::optional<at::Tensor>& bias, const at::Tensor& targets,
                              const Options& options) {
  const at::Tensor hidden =
      options.split && given_hidden.defined() ? options.split->Enter(given_hidden) : given_hidden;
  const at::Tensor given_bias = bias.value_or(at::Tensor());
  CheckShapes(hidden, weight, given_bias, targets);
  CheckOptions(options, weight);
  const auto wants = [](const at::Tensor& tensor) {
    return torch::autograd::GradMode::is_enabled() && tensor.defined() && tensor.requires_grad();
  };
  const Wanted wanted{wants(hidden), wants(weight), wants(given_bias)};
  const at::Tensor rows = hidden.reshape({-1, hidden.size(-1)});
  const at::Tensor flat_targets = targets.reshape({-1});
  if (!wanted.any()) {
    const Factors factors = FactorsOf(flat_targets, options, SumType(rows));
    const at::Tensor loss =
        Pass(rows, weight, given_bias, flat_targets, options, wanted, factors).Run().loss;
    return loss * factors.all;
  }
  return Function::apply(rows, weight, bias, flat_targets, options, wanted);
}

}  // namespace plimsoll::train
