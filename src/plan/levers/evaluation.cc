// The evaluation of a job, which may need more than its training: without a graph, with what it
// keeps on the host, in smaller batches. Its time is not that of a step.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"
#include "job/transforms/evaluation.h"
#include "plan/lever.h"

namespace plimsoll {
namespace {

struct Evaluation {
  bool no_grad = false;
  bool on_host = false;
  /// Batches of an nth.
  int shares = 1;
};

constexpr int kMostShares = 1024;
/// The later ones of as many samples alone: training may take them in many micro-batches.
constexpr int kSharesToTry[] = {4, 32, 256};

LeverValue EvaluationValue(const Evaluation& is) {
  std::vector<std::string> words;
  if (is.no_grad) words.push_back("no_grad");
  if (is.on_host) words.push_back("host");
  if (is.shares > 1) words.push_back(fmt::format("batch/{}", is.shares));
  return {Joined(words, "+"), is};
}

Error CannotBe(std::string_view text) {
  return {.message = fmt::format("evaluation cannot be '{}'", text),
          .hint = "no_grad, host, batch/2, or several of them: no_grad+host"};
}

bool ReadWord(std::string_view word, Evaluation& is) {
  if (word == "no_grad") return is.no_grad = true;
  if (word == "host") return is.on_host = true;
  constexpr std::string_view kBatch = "batch/";
  if (!word.starts_with(kBatch)) return false;
  word.remove_prefix(kBatch.size());
  const auto read = std::from_chars(word.data(), word.data() + word.size(), is.shares);
  const bool whole = read.ec == std::errc() && read.ptr == word.data() + word.size();
  return whole && is.shares >= 2 && is.shares <= kMostShares;
}

Result<LeverValue> ParseEvaluation(std::string_view text) {
  Evaluation is;
  std::string_view left = text;
  while (true) {
    const std::size_t end = std::min(left.find('+'), left.size());
    if (!ReadWord(left.substr(0, end), is)) return CannotBe(text);
    if (end == left.size()) return EvaluationValue(is);
    left.remove_prefix(end + 1);
  }
}

/// What costs nothing together, and then smaller batches as well.
std::vector<LeverValue> WorthTrying(const PlanRequest& request, const Variant& variant) {
  Evaluation is{.no_grad = EvaluationHasGraph(variant)};
  is.on_host = EvaluationKeepsOutputs(is.no_grad ? EvaluateWithoutGraph(variant) : variant);
  std::vector<LeverValue> values;
  if (is.no_grad || is.on_host) values.push_back(EvaluationValue(is));
  if (!EvaluationFollowsBatch(request.job, variant)) return values;
  for (const int shares : kSharesToTry) {
    if (shares > kSharesToTry[0] && shares > request.samples / request.gpus) break;
    is.shares = shares;
    values.push_back(EvaluationValue(is));
  }
  return values;
}

std::string Describe(const Evaluation& is) {
  std::vector<std::string> words;
  if (is.no_grad) words.emplace_back("without gradients");
  if (is.on_host) words.emplace_back("outputs on the host");
  if (is.shares > 1) words.push_back(fmt::format("batches of 1/{}", is.shares));
  return "evaluation: " + Joined(words, ", ");
}

/// Micro-batches that plan adds are cut from the batches of training alone.
std::int64_t BatchOf(const Job& job, const Choice& choice) {
  return choice.batch * (CapturedPasses(job) > 1 ? 1 : MicroBatchesOf(job, choice));
}

std::vector<std::string> CodeOf(const Evaluation& is, std::int64_t batch) {
  std::vector<std::string> lines;
  if (is.no_grad) lines.emplace_back("with torch.no_grad():  # around the evaluation's loop");
  if (is.on_host) lines.emplace_back("outputs.append(output.cpu())  # what the evaluation keeps");
  if (is.shares > 1) {
    lines.push_back(fmt::format("# the evaluation gets batches of {} // {}", batch, is.shares));
  }
  return lines;
}

}  // namespace

extern const PlanLever kEvaluationLever;
const PlanLever kEvaluationLever = {
    .name = "evaluation",
    .values = "no_grad, host, batch/N, or several joined by +",
    .parse = ParseEvaluation,
    .numerics = SameResults,
    .worth_trying = WorthTrying,
    .describe = [](const Job&, const Choice&,
                   const LeverValue& value) { return Describe(value.As<Evaluation>()); },
    .fields = [](const Job&, const LeverValue& value) -> LeverFields {
      const auto& is = value.As<Evaluation>();
      return {
          {"no_grad", is.no_grad}, {"on_host", is.on_host}, {"shares", std::int64_t{is.shares}}};
    },
    .code =
        [](const Job& job, const Choice& choice, const LeverValue& value) {
          return CodeOf(value.As<Evaluation>(), BatchOf(job, choice));
        },
    .rewrite = [](Job&, Variant& variant, const LeverValue& value) -> std::optional<Error> {
      const auto& is = value.As<Evaluation>();
      if (is.no_grad) variant = EvaluateWithoutGraph(variant);
      if (is.on_host) variant = KeepOutputsOnHost(variant);
      if (is.shares > 1) variant = EvaluateInShares(variant, is.shares);
      return std::nullopt;
    },
};

}  // namespace plimsoll
