// The precision: any that the capture recorded beside the job as written.
#include <fmt/format.h>

#include <algorithm>

#include "job/transforms/gradient_uses.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

struct Known {
  std::string_view name;
  std::string_view words;
  Numerics numerics;
};

constexpr Known kKnown[] = {
    {"fp32", "fp32", Numerics::kRounding},
    {"amp_bf16", "bf16 autocast", Numerics::kRounding},
    {"amp_fp16", "fp16 autocast", Numerics::kRounding},
    // Weights in bf16 forget small updates: that trains otherwise.
    {"bf16", "weights in bf16", Numerics::kOther},
};

constexpr std::string_view kChannelsLast = "channels_last";
constexpr std::string_view kCompiled = "compiled";
constexpr std::string_view kEager = "eager";

/// Of the names that a capture gave its precisions: "amp_bf16+channels_last" is "amp_bf16" in
/// another memory format.
struct PrecisionName {
  std::string name;
  std::string type;
  bool channels_last = false;
  bool compiled = false;
  /// Of a job that is compiled as it was written: without that.
  bool eager = false;
};

/// Takes a word off the end of names that are joined by "+".
bool TakeLast(std::string& names, std::string_view word) {
  if (!names.ends_with(word)) return false;
  names.resize(names.size() - word.size());
  if (names.ends_with('+')) names.pop_back();
  return true;
}

LeverValue PrecisionValue(const std::string& name) {
  PrecisionName is{.name = name, .type = name};
  is.compiled = TakeLast(is.type, kCompiled);
  is.channels_last = TakeLast(is.type, kChannelsLast);
  is.eager = is.type == kEager;
  if (is.eager) is.type.clear();
  return {name, std::move(is)};
}

const Known* FindKnown(const PrecisionName& precision) {
  for (const Known& known : kKnown) {
    if (known.name == precision.type) return &known;
  }
  return nullptr;
}

/// A dropout of images draws its mask in the order in which they lie in memory.
bool DropsOutOfImages(const Job& job) {
  return std::ranges::any_of(job.variants.front().calls, [&](const CallRecord& call) {
    const std::string_view op = BaseName(job.strings[call.op]);
    if (op != "native_dropout" && op != "bernoulli_" && op != "rand_like") return false;
    return std::ranges::any_of(call.args, [&](const Argument& argument) {
      const auto* tensor = std::get_if<TensorUse>(&argument.is);
      return tensor != nullptr && job.layouts[tensor->layout].sizes.size() >= 4;
    });
  });
}

Numerics NumericsOfPrecision(const Job& job, const LeverValue& value) {
  const auto& is = value.As<PrecisionName>();
  if (is.channels_last && DropsOutOfImages(job)) return Numerics::kOther;
  const Known* const known = FindKnown(is);
  return known == nullptr ? Numerics::kRounding : known->numerics;
}

std::vector<LeverValue> PrecisionsWorthTrying(const PlanRequest& request, const Variant&) {
  std::vector<LeverValue> values;
  for (std::size_t i = 1; i < request.job.variants.size(); ++i) {
    // One without a name cannot be asked for.
    const std::string& name = request.job.variants[i].precision;
    if (!name.empty()) values.push_back(PrecisionValue(name));
  }
  return values;
}

std::string DescribePrecision(const Job&, const Choice&, const LeverValue& value) {
  const auto& is = value.As<PrecisionName>();
  const Known* const known = FindKnown(is);
  std::string words = known == nullptr ? is.type : std::string(known->words);
  const auto add = [&](bool has, std::string_view more) {
    if (has) words += (words.empty() ? "" : ", ") + std::string(more);
  };
  add(is.channels_last, "channels last");
  add(is.compiled, "compiled");
  add(is.eager, "not compiled");
  return words;
}

/// Where a library's setting makes it so: the lines that set it.
std::vector<std::string> SettingOf(const Job& job, const std::string& precision) {
  const auto variant = std::ranges::find(job.variants, precision, &Variant::precision);
  if (variant == job.variants.end() || variant->set_by.empty()) return {};
  if (variant->set_by == "accelerate") {
    return {"args = TrainingArguments(..., bf16=True)           # of transformers' Trainer",
            "accelerator = Accelerator(mixed_precision=\"bf16\")  # of a loop of one's own"};
  }
  return {"trainer = Trainer(..., precision=\"bf16-mixed\")  # of Lightning",
          "fabric = Fabric(..., precision=\"bf16-mixed\")    # of a loop of one's own"};
}

std::vector<std::string> PrecisionCode(const Job& job, const Choice&, const LeverValue& value) {
  const auto& is = value.As<PrecisionName>();
  if (std::vector<std::string> setting = SettingOf(job, is.name); !setting.empty()) return setting;
  std::vector<std::string> lines;
  if (is.channels_last) {
    lines = {"model = model.to(memory_format=torch.channels_last)",
             "x = x.to(memory_format=torch.channels_last)"};
  }
  const auto add = [&](std::initializer_list<const char*> more) {
    lines.insert(lines.end(), more.begin(), more.end());
  };
  if (is.type == "amp_bf16") {
    add({"with torch.autocast(\"cuda\", dtype=torch.bfloat16):",
         "    loss = criterion(model(x), y)"});
  } else if (is.type == "amp_fp16") {
    add({"scaler = torch.amp.GradScaler(\"cuda\")",
         "with torch.autocast(\"cuda\", dtype=torch.float16):", "    loss = criterion(model(x), y)",
         "scaler.scale(loss).backward()"});
    // Else what uses the gradients there sees scaled ones.
    if (const std::string line = GradientsUsedAt(job, job.variants.front()); !line.empty()) {
      lines.push_back(fmt::format("scaler.unscale_(optimizer)  # before {}", line));
    }
    add({"scaler.step(optimizer); scaler.update()"});
  } else if (is.type == "bf16") {
    add({"model = model.bfloat16()  # before the optimizer is made",
         "x = x.bfloat16()          # inputs that are no indices"});
  } else if (is.type == "fp32") {
    add({"model = model.float()  # before the optimizer is made, and no autocast"});
  }
  if (is.compiled) add({"model = torch.compile(model)"});
  if (is.eager) add({"# leave torch.compile out"});
  return lines;
}

}  // namespace

bool HasWeightsInBf16(const Choice& choice) {
  const LeverValue* const value = choice.Find(kPrecisionLever.name);
  return value != nullptr && value->As<PrecisionName>().name == "bf16";
}

const PlanLever kPrecisionLever = {
    .name = "precision",
    .values = "one that was captured: amp_bf16, amp_fp16, bf16, amp_bf16+channels_last, compiled",
    .parse = [](std::string_view text) -> Result<LeverValue> {
      return PrecisionValue(std::string(text));
    },
    .numerics = NumericsOfPrecision,
    .worth_trying = PrecisionsWorthTrying,
    .of_compiled = true,
    .describe = DescribePrecision,
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      const auto& is = value.As<PrecisionName>();
      LeverFields fields = {
          {"name", is.name}, {"type", is.type}, {"channels_last", is.channels_last}};
      if (is.compiled) fields.push_back({"compiled", true});
      return fields;
    },
    .code = PrecisionCode,
    .configure = [](PredictOptions& options, const LeverValue& value) -> std::optional<Error> {
      options.precision = value.As<PrecisionName>().name;
      return std::nullopt;
    },
};

}  // namespace plimsoll
