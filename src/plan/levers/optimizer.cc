// The optimizer and its form: one kernel for all needs no lists of temporaries, 8-bit states take a
// quarter.
#include "job/transforms/optimizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "job/time/host_step.h"
#include "job/transforms/job_editor.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

LeverValue OptimizerValue(OtherOptimizer optimizer) {
  std::string text = OptimizerText(optimizer);
  return {std::move(text), std::move(optimizer)};
}

std::string ClassOf(std::string_view name) {
  constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
      {"sgd", "torch.optim.SGD"},
      {"sgd_momentum", "torch.optim.SGD"},
      {"adam", "torch.optim.Adam"},
      {"adamw", "torch.optim.AdamW"},
      {"adam_amsgrad", "torch.optim.Adam"},
      {"nadam", "torch.optim.NAdam"},
      {"radam", "torch.optim.RAdam"},
      {"adamax", "torch.optim.Adamax"},
      {"rmsprop", "torch.optim.RMSprop"},
      {"adagrad", "torch.optim.Adagrad"},
      {"adadelta", "torch.optim.Adadelta"},
      {"adafactor", "torch.optim.Adafactor"},
      {"adam8bit", "bitsandbytes.optim.Adam8bit"},
  };
  for (const auto& [known, python] : kClasses) {
    if (known == name) return std::string(python);
  }
  return std::string(name);
}

LeverFields OptimizerFields(const Job&, const LeverValue& value) {
  const auto& is = value.As<OtherOptimizer>();
  return {{"name", is.name},
          {"form", std::string(is.form ? OptimizerFormName(*is.form) : "")},
          {"in_backward", is.in_backward}};
}

CapturedOptimizer Captured(const Job& job) { return OptimizerOf(job, job.variants.front()); }

/// The same optimizer in another form only rounds otherwise.
Numerics NumericsOfOptimizer(const Job& job, const LeverValue& value) {
  return value.As<OtherOptimizer>().name == Captured(job).name ? Numerics::kRounding
                                                               : Numerics::kOther;
}

/// A step on the host is slow: worth it where the two moments take a tenth of the card.
bool StateIsMuch(const PlanRequest& request, const Variant& variant) {
  Bytes parameters = 0;
  for (const ModelTensor& tensor : variant.model_tensors) {
    if (tensor.trainable) parameters += BytesOf(request.job, tensor);
  }
  return 2 * parameters >= request.options.limit.value_or(request.gpu.memory) / 10;
}

std::vector<LeverValue> OptimizersWorthTrying(const PlanRequest& request, const Variant& variant) {
  const CapturedOptimizer captured = OptimizerOf(request.job, variant);
  if (captured.name.empty()) return {};
  const OtherOptimizer fused{.name = captured.name, .form = OptimizerForm::kFused};
  std::vector<LeverValue> values;
  if (!captured.fused) values.push_back(OptimizerValue(fused));
  if (WhyNotInBackward(request.job, variant).empty()) {
    values.push_back(OptimizerValue({.name = fused.name, .form = fused.form, .in_backward = true}));
  }
  if (captured.name.starts_with("adam")) {
    if (StateIsMuch(request, variant)) {
      values.push_back(OptimizerValue({.name = captured.name, .form = OptimizerForm::kHost}));
    }
    values.push_back(OptimizerValue({.name = "adam8bit"}));
    values.push_back(OptimizerValue({.name = "adafactor"}));
  }
  return values;
}

std::optional<std::string> WhyNotOffered(const PlanRequest& request, const Variant& variant) {
  if (variant.compiled || OptimizerOf(request.job, variant).name.empty()) return std::nullopt;
  std::string why = WhyNotInBackward(request.job, variant);
  return why.empty() ? std::nullopt : std::optional(std::move(why));
}

std::string DescribeOptimizer(const Job& job, const Choice&, const LeverValue& value) {
  const auto& is = value.As<OtherOptimizer>();
  if (is.form == OptimizerForm::kFused) {
    if (is.in_backward) return "fused optimizer in the backward";
    if (is.name == Captured(job).name) return "fused optimizer";
  }
  if (is.form == OptimizerForm::kHost) return "optimizer on the host";
  if (is.name == "adam8bit") return "8-bit Adam";
  return value.text();
}

std::vector<std::string> CodeInBackward(const OtherOptimizer& is) {
  return {fmt::format("optimizers = {{p: {}([p], ..., {}) for p in model.parameters()}}",
                      ClassOf(is.name),
                      is.form == OptimizerForm::kFused ? "fused=True" : "foreach=False"),
          "def update(p):", "    optimizers[p].step(); p.grad = None",
          "for p in model.parameters(): p.register_post_accumulate_grad_hook(update)",
          "# and no optimizer.step() after the backward"};
}

std::vector<std::string> OptimizerCode(const Job&, const Choice&, const LeverValue& value) {
  const auto& is = value.As<OtherOptimizer>();
  if (is.in_backward) return CodeInBackward(is);
  std::string arguments = "model.parameters(), ...";
  if (is.name == "sgd_momentum") arguments += ", momentum=0.9";
  if (is.name == "adam_amsgrad") arguments += ", amsgrad=True";
  if (is.form == OptimizerForm::kFused) arguments += ", fused=True";
  if (is.form == OptimizerForm::kForeach) arguments += ", foreach=True";
  if (is.form == OptimizerForm::kLoop) arguments += ", foreach=False";
  const std::string made = fmt::format("{}({})", ClassOf(is.name), arguments);
  if (is.form != OptimizerForm::kHost) return {"optimizer = " + made};
  return {"from plimsoll.host_optimizer import HostOptimizer",
          fmt::format("optimizer = HostOptimizer({})", made)};
}

std::optional<Error> ReplaceIt(Job& job, Variant& variant, const LeverValue& value) {
  const auto& is = value.As<OtherOptimizer>();
  Result<Variant> replaced = ReplaceOptimizer(job, variant, is);
  if (!replaced) return replaced.error();
  if (is.form == OptimizerForm::kHost) {
    Note(job, fmt::format("the optimizer's step on the host is assumed to go through {:.0f} GB "
                          "of its memory a second",
                          kHostMemoryRate * 1e-3));
  }
  variant = std::move(*replaced);
  return std::nullopt;
}

}  // namespace

bool StepsInBackward(const Choice& choice) {
  const LeverValue* const value = choice.Find(kOptimizerLever.name);
  return value != nullptr && value->As<OtherOptimizer>().in_backward;
}

const PlanLever kOptimizerLever = {
    .name = "optimizer",
    .values =
        "sgd, adamw, adamw:fused, adamw:fused:in_backward, adam:for, adamw:host, adam8bit, ...",
    .parse = [](std::string_view text) -> Result<LeverValue> {
      Result<OtherOptimizer> parsed = ParseOptimizer(text);
      if (!parsed) return parsed.error();
      return OptimizerValue(std::move(*parsed));
    },
    .numerics = NumericsOfOptimizer,
    .worth_trying = OptimizersWorthTrying,
    .why_not = WhyNotOffered,
    .of_compiled = true,
    .suits =
        [](const Job&, const Variant& variant, const LeverValue& value) {
          return !variant.compiled || !value.As<OtherOptimizer>().in_backward;
        },
    .describe = DescribeOptimizer,
    .fields = OptimizerFields,
    .code = OptimizerCode,
    .rewrite = ReplaceIt,
};

}  // namespace plimsoll
