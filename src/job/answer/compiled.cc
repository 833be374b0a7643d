#include "job/answer/compiled.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace plimsoll {
namespace {

constexpr std::string_view kTiming = "inductor.timing";

/// "amp_bf16+compiled" is "amp_bf16" with it, and of a job that is compiled as it was written the
/// other is called "eager".
std::string NameOfOther(const Variant& variant) {
  constexpr std::string_view kCompiled = "compiled";
  const std::string& name = variant.precision;
  if (variant.compiled) {
    if (!name.ends_with(kCompiled)) return "eager";
    std::string plain = name.substr(0, name.size() - kCompiled.size());
    if (plain.ends_with('+')) plain.pop_back();
    return plain.empty() ? "as_written" : plain;
  }
  if (name == "eager") return "as_written";
  return name == "as_written" ? std::string(kCompiled) : name + "+" + std::string(kCompiled);
}

Bytes LargestTiming(const Job& job, const Variant& variant) {
  Bytes largest = 0;
  for (const CallRecord& call : variant.calls) {
    if (job.strings[call.op] != kTiming) continue;
    for (const NewStorage& made : call.fresh) largest = std::max(largest, made.bytes.least());
  }
  return largest;
}

}  // namespace

std::optional<Compiled> FindCompiled(const Job& job, const Gpu& gpu,
                                     const PredictOptions& options) {
  const Result<const Variant*> asked = ChooseVariant(job, options);
  if (!asked) return std::nullopt;
  const std::string name = NameOfOther(**asked);
  const auto other = std::find_if(job.variants.begin(), job.variants.end(), [&](const Variant& v) {
    return v.precision == name && v.compiled != (*asked)->compiled;
  });
  if (other == job.variants.end()) return std::nullopt;
  PredictOptions its = options;
  its.precision = name;
  Result<Setting> setting = MakeSetting(job, gpu, its);
  if (!setting) return std::nullopt;
  const TrialResult result = Trial(std::move(*setting)).WithRanges();
  return Compiled{.is = (*asked)->compiled,
                  .other = result.unlimited,
                  .other_step_us = result.step_us,
                  .timing = LargestTiming(job, (*asked)->compiled ? **asked : *other)};
}

}  // namespace plimsoll
