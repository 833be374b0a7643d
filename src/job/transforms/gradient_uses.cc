#include "job/transforms/gradient_uses.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string_view>
#include <utility>

#include "base/hash.h"
#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

/// All that the steps of SGD, Adam and AdamW call. Clipping and scalers have others: norms, clamps,
/// a check for what is finite.
constexpr std::string_view kOfSteps[] = {
    "_foreach_add",
    "_foreach_add_",
    "_foreach_addcdiv_",
    "_foreach_addcmul_",
    "_foreach_copy_",
    "_foreach_div",
    "_foreach_div_",
    "_foreach_lerp_",
    "_foreach_maximum_",
    "_foreach_mul",
    "_foreach_mul_",
    "_foreach_neg",
    "_foreach_neg_",
    "_foreach_pow",
    "_foreach_reciprocal_",
    "_foreach_sqrt",
    "_foreach_sqrt_",
    "_foreach_sub",
    "_foreach_sub_",
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
    "_to_copy",
    "add",
    "add_",
    "addcdiv_",
    "addcmul_",
    "clone",
    "copy_",
    "div",
    "div_",
    "empty_like",
    "lerp_",
    "maximum",
    "mul",
    "mul_",
    "neg",
    "sqrt",
    "zero_",
    "zeros",
    "zeros_like",
    "_foreach_zero_",
    "optimizer_step_",
};

constexpr std::string_view kUnscale = "_amp_foreach_non_finite_check_and_unscale_";

/// Looks at the calls between each backward and the next step.
class UseFinder {
 public:
  UseFinder(const Job& job, const Variant& variant) : job_(job), variant_(variant) {
    for (const JobEvent& event : variant.events) {
      if (event.kind == JobEvent::Kind::kLabel && event.category == Category::kGradients) {
        gradients_[event.index] = 1;
      }
    }
    for (const ModelTensor& tensor : variant.model_tensors) {
      if (tensor.trainable) parameters_[tensor.storage] = 1;
    }
    EachCall([&](const CallRecord& call) {
      if (Writes(call, parameters_)) updates_.insert(call.where);
    });
  }

  /// The calls that use gradients and are not of the optimizer's step.
  std::vector<const CallRecord*> Find() const {
    std::vector<const CallRecord*> found;
    EachCall([&](const CallRecord& call) {
      if (Uses(call)) found.push_back(&call);
    });
    return found;
  }

 private:
  template <typename Each>
  void EachCall(Each each) const {
    Stage stage = Stage::kUnknown;
    for (const JobEvent& event : variant_.events) {
      if (event.kind == JobEvent::Kind::kStep) stage = Stage::kUnknown;
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind == JobEvent::Kind::kCall && stage == Stage::kOptimizer) {
        each(variant_.calls[event.index]);
      }
    }
  }

  bool Uses(const CallRecord& call) const {
    bool takes = false;
    ForEachArgument(call, [&](const TensorUse& t) { takes |= gradients_.contains(t.storage); });
    if (!takes) return false;
    // Operators of ours stand for what ranks do.
    if (job_.strings[call.op].starts_with("plimsoll.")) return false;
    const std::string_view name = BaseName(job_.strings[call.op]);
    if (name == "zero_" || name == "_foreach_zero_") return false;
    const bool of_a_step = std::ranges::find(kOfSteps, name) != std::end(kOfSteps);
    return !updates_.contains(call.where) || !of_a_step || Writes(call, gradients_);
  }

  /// Whether it works in place on one of these, which is its first argument.
  bool Writes(const CallRecord& call, const HashMap<Storage, char>& tensors) const {
    if (!BaseName(job_.strings[call.op]).ends_with('_') || call.args.empty()) return false;
    CallRecord first;
    first.args = {call.args.front()};
    bool writes = false;
    ForEachArgument(std::as_const(first),
                    [&](const TensorUse& t) { writes |= tensors.contains(t.storage); });
    return writes;
  }

  const Job& job_;
  const Variant& variant_;
  HashMap<Storage, char> gradients_, parameters_;
  /// Lines that change parameters: they step.
  std::set<StringId> updates_;
};

}  // namespace

std::vector<GradientUse> GradientUsesOf(const Job& job, const Variant& variant) {
  if (variant.gradients_used && variant.gradients_used->empty()) return {};
  const std::vector<const CallRecord*> calls = UseFinder(job, variant).Find();
  const auto line_of = [&](const CallRecord& call) {
    const std::string_view where = job.strings[call.where];
    return where.empty() ? "the training loop" : std::string(where);
  };
  std::vector<std::string> lines;
  if (variant.gradients_used) {
    lines = *variant.gradients_used;
  } else if (!calls.empty()) {
    lines = {line_of(*calls.front())};
  }
  std::vector<GradientUse> uses;
  for (std::string& line : lines) {
    bool unscales = false;
    bool more = false;
    for (const CallRecord* call : calls) {
      if (line_of(*call) != line) continue;
      (job.strings[call->op].find(kUnscale) != std::string_view::npos ? unscales : more) = true;
    }
    uses.push_back({.at = std::move(line), .by_scaler = unscales && !more});
  }
  return uses;
}

std::string GradientsUsedAt(const Job& job, const Variant& variant) {
  const std::vector<GradientUse> uses = GradientUsesOf(job, variant);
  return uses.empty() ? std::string() : uses.front().at;
}

}  // namespace plimsoll
