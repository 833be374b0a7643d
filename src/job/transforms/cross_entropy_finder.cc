#include "job/transforms/cross_entropy_finder.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "job/transforms/linear_product.h"

namespace plimsoll {
namespace {

class CrossEntropyFinder {
 public:
  explicit CrossEntropyFinder(const CallUses& uses) : uses_(uses), product_(uses, found_) {}

  std::optional<Result<LinearLoss>> From(std::size_t log_softmax) {
    const CallRecord& call = uses_.CallAt(log_softmax);
    if (call.results.empty() || !FindLoss(call.results[0].storage)) return std::nullopt;
    found_.events.insert(log_softmax);
    const TensorUse* logits = TensorArg(call, 0);
    if (logits == nullptr) return std::nullopt;
    std::string why = each_row_ ? "the loss of each row is used by itself"
                                : product_.FindFrom(*logits, {.loss = "its cross-entropy"});
    if (why.empty()) why = FindBackward();
    if (why.empty()) {
      product_.TakeOwnCasts();
      why = product_.OnlyHere();
    }
    if (!why.empty()) return Result<LinearLoss>(NotInChunks(why));
    found_.kind = loss_;
    return Result<LinearLoss>(std::move(found_));
  }

 private:
  /// nll_loss(log_probabilities, labels, weight, reduction, ignore_index)
  bool FindLoss(Storage log_probabilities) {
    read_ = AsLossReads(log_probabilities);
    const auto& readers = uses_.ReadersOf(read_);
    if (readers.empty() || uses_.OpAt(readers.front()) != "nll_loss_forward") return false;
    const CallRecord& call = uses_.CallAt(readers.front());
    const TensorUse* labels = TensorArg(call, 1);
    const auto* reduction = call.args.size() > 3 ? std::get_if<Number>(&call.args[3].is) : nullptr;
    if (labels == nullptr || call.results.size() != 2 || TensorArg(call, 2) != nullptr) {
      return false;
    }
    found_.forward = readers.front();
    found_.labels = *labels;
    loss_.loss = call.results[0];
    loss_.mean = reduction == nullptr || reduction->least() == 1;
    each_row_ = reduction != nullptr && reduction->least() == 0;
    found_.events.insert(found_.forward);
    found_.inner.insert(log_probabilities);
    found_.inner.insert(read_);
    found_.inner.insert(call.results[1].storage);
    return true;
  }

  /// Autocast leaves log_softmax its own type where F.cross_entropy is called with logits in half
  /// precision, and widens what it gives for nll_loss.
  Storage AsLossReads(Storage log_probabilities) {
    const auto& readers = uses_.ReadersOf(log_probabilities);
    if (readers.empty() || uses_.OpAt(readers.front()) != "_to_copy") return log_probabilities;
    const CallRecord& cast = uses_.CallAt(readers.front());
    if (cast.results.empty()) return log_probabilities;
    found_.events.insert(readers.front());
    return cast.results[0].storage;
  }

  std::string FindBackward() {
    for (const std::size_t reader : uses_.ReadersOf(read_)) {
      if (uses_.OpAt(reader) == "nll_loss_backward") found_.backward = reader;
    }
    if (!found_.backward) return "it has no backward";
    const CallRecord& call = uses_.CallAt(*found_.backward);
    const TensorUse* outer = TensorArg(call, 0);
    if (outer == nullptr || call.results.empty()) return "it has no backward";
    loss_.outer = *outer;
    found_.events.insert(*found_.backward);
    std::vector<Storage> open = {call.results[0].storage};
    while (!open.empty()) {
      const Storage gradient = open.back();
      open.pop_back();
      if (!found_.inner.insert(gradient).second) continue;
      for (const std::size_t reader : uses_.ReadersOf(gradient)) {
        if (std::string why = Follow(reader, gradient, open); !why.empty()) return why;
      }
    }
    return {};
  }

  /// From a gradient of the logits to the next one, or to a gradient that is a result.
  std::string Follow(std::size_t event, Storage gradient, std::vector<Storage>& open) {
    const CallRecord& call = uses_.CallAt(event);
    const std::string_view op = uses_.OpAt(event);
    if (call.results.empty() || call.fresh.empty()) {
      return fmt::format("{} works on the gradient of its logits", op);
    }
    found_.events.insert(event);
    if (op == "mm" || op == "sum") return product_.TakeGradient(event, gradient);
    if (op != "_log_softmax_backward_data" && op != "_to_copy" && op != "clone" &&
        op != "slice_backward") {
      return fmt::format("{} reads the gradient of its logits", op);
    }
    open.push_back(call.results[0].storage);
    return {};
  }

  const CallUses& uses_;
  LinearLoss found_;
  LinearProduct product_;
  CrossEntropy loss_;
  /// The log-probabilities, as nll_loss reads them.
  Storage read_ = kElsewhere;
  bool each_row_ = false;
};

}  // namespace

std::optional<Result<LinearLoss>> FindCrossEntropy(const CallUses& uses, std::size_t log_softmax) {
  return CrossEntropyFinder(uses).From(log_softmax);
}

Error NotInChunks(std::string_view why) {
  return {.message = fmt::format("the loss cannot be computed in chunks: {}", why),
          .hint = "leave out loss=chunked"};
}

}  // namespace plimsoll
