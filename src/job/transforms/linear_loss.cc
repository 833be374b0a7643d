#include "job/transforms/linear_loss.h"

#include <utility>

#include "job/transforms/cross_entropy_finder.h"
#include "job/transforms/job_editor.h"
#include "job/transforms/log_probabilities_finder.h"

namespace plimsoll {
namespace {

/// Of the first tensor that the call reads.
Bytes BytesRead(const Job& job, const CallRecord& call) {
  const TensorUse* read = TensorArg(call, 0);
  return read == nullptr ? 0 : BytesOf(job.layouts[read->layout]);
}

}  // namespace

LinearLosses LookForLinearLosses(const Job& job, const Variant& variant) {
  const CallUses uses(job, variant);
  LogProbabilitiesFinder of_single_classes(uses);
  LinearLosses losses;
  for (const std::size_t event : uses.forward()) {
    const std::string_view op = uses.OpAt(event);
    std::optional<Result<LinearLoss>> found;
    if (op == "_log_softmax") found = FindCrossEntropy(uses, event);
    if (op == "gather") found = of_single_classes.From(event);
    if (!found) continue;
    if (*found) {
      losses.found.push_back(std::move(**found));
    } else {
      losses.refused.push_back(
          {.logits = BytesRead(job, uses.CallAt(event)), .why = found->error()});
    }
  }
  return losses;
}

Result<std::vector<LinearLoss>> FindLinearLosses(const Job& job, const Variant& variant) {
  LinearLosses losses = LookForLinearLosses(job, variant);
  if (!losses.found.empty()) return std::move(losses.found);
  if (!losses.refused.empty()) return losses.refused.back().why;
  return Error{.message =
                   "the loss is no cross-entropy and no log-probabilities over a linear "
                   "layer",
               .hint = "leave out loss=chunked"};
}

}  // namespace plimsoll
