#include "job/transforms/linear_loss.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>
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

void Refuse(LinearLosses& losses, std::string_view why,
            const std::function<bool(const LinearLoss&)>& which) {
  std::erase_if(losses.found, [&](const LinearLoss& loss) {
    if (!which(loss)) return false;
    losses.refused.push_back({.logits = LogitsOf(loss), .why = NotInChunks(why)});
    return true;
  });
}

/// In chunks there are no logits to keep. Of the last step nobody saw whether they are.
void RefuseKept(const CallUses& uses, LinearLosses& losses) {
  std::set<Storage> weights;
  for (const LinearLoss& loss : losses.found) {
    const auto is_kept = [&](Storage storage) { return uses.IsKept(storage); };
    if (std::ranges::any_of(loss.inner, is_kept)) weights.insert(loss.weight.storage);
  }
  Refuse(losses, "the script keeps its logits",
         [&](const LinearLoss& loss) { return weights.contains(loss.weight.storage); });
}

/// plimsoll.apply changes the model that trains, and no other: a loss without a gradient counts
/// where that model makes its logits.
void RefuseOfOtherModels(const CallUses& uses, LinearLosses& losses) {
  const auto trains = [](const LinearLoss& loss) { return loss.backward.has_value(); };
  const auto first = std::ranges::find_if(losses.found, trains);
  const Storage weight = first == losses.found.end() ? kElsewhere : first->weight.storage;
  const auto is_other = [&](const LinearLoss& loss) {
    return weight == kElsewhere ? uses.trains() : !uses.InOneModel(loss.weight.storage, weight);
  };
  if (std::ranges::any_of(losses.found,
                          [&](const LinearLoss& loss) { return trains(loss) && is_other(loss); })) {
    Refuse(losses, "several models are trained by one", [](const LinearLoss&) { return true; });
  }
  Refuse(losses, "it is of a model that is not trained", is_other);
}

}  // namespace

Bytes LogitsOf(const LinearLoss& loss) {
  return BoundedProduct(BoundedProduct(loss.rows.least(), loss.classes.least()),
                        ElementSize(loss.type));
}

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
  RefuseKept(uses, losses);
  RefuseOfOtherModels(uses, losses);
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
