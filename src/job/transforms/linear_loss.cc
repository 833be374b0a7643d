#include "job/transforms/linear_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "job/transforms/tensors_of_call.h"

namespace plimsoll {
namespace {

constexpr std::size_t kNoCall = static_cast<std::size_t>(-1);

const TensorUse* TensorArg(const CallRecord& call, std::size_t i) {
  const auto* use = i < call.args.size() ? std::get_if<TensorUse>(&call.args[i].is) : nullptr;
  return use != nullptr && use->storage != kElsewhere ? use : nullptr;
}

/// Which calls make and read each storage, by event.
class Uses {
 public:
  explicit Uses(const Variant& variant) : maker_(variant.storages, kNoCall) {
    readers_.resize(variant.storages);
    Stage stage = Stage::kUnknown;
    for (std::size_t i = 0; i < variant.events.size(); ++i) {
      const JobEvent& event = variant.events[i];
      if (event.kind == JobEvent::Kind::kStage) stage = event.stage;
      if (event.kind != JobEvent::Kind::kCall) continue;
      const CallRecord& call = variant.calls[event.index];
      ForEachArgument(call, [&](const TensorUse& use) {
        std::vector<std::size_t>& readers = readers_[use.storage];
        if (readers.empty() || readers.back() != i) readers.push_back(i);
      });
      for (const NewStorage& fresh : call.fresh) maker_[fresh.storage] = i;
      if (stage == Stage::kForward) forward_.push_back(i);
    }
  }

  std::size_t MakerOf(Storage storage) const { return maker_[storage]; }
  const std::vector<std::size_t>& ReadersOf(Storage storage) const { return readers_[storage]; }
  /// The calls of forwards, in order.
  const std::vector<std::size_t>& forward() const { return forward_; }

 private:
  std::vector<std::size_t> maker_;
  std::vector<std::vector<std::size_t>> readers_;
  std::vector<std::size_t> forward_;
};

/// Follows one log_softmax to both sides.
class LossFinder {
 public:
  LossFinder(const Job& job, const Variant& variant, const Uses& uses)
      : job_(job), variant_(variant), uses_(uses) {
    for (const ModelTensor& tensor : variant.model_tensors) {
      if (!tensor.buffer) parameters_.insert(tensor.storage);
    }
  }

  /// Nothing where it is no loss at all (a head of attention).
  std::optional<Result<LinearLoss>> From(std::size_t log_softmax) {
    found_ = {};
    why_.clear();
    const CallRecord& call = CallAt(log_softmax);
    if (call.results.empty()) return std::nullopt;
    if (!FindLoss(call.results[0].storage)) return OfLogProbabilities(call);
    found_.events.insert(log_softmax);
    const TensorUse* logits = TensorArg(call, 0);
    if (logits == nullptr) return std::nullopt;
    if (FindProduct(*logits) && FindBackward() && OnlyHere()) {
      return Result<LinearLoss>(std::move(found_));
    }
    return Result<LinearLoss>(Error{.message = "the loss cannot be computed in chunks: " + why_,
                                    .hint = "leave out loss=chunked"});
  }

 private:
  const CallRecord& CallAt(std::size_t event) const {
    return variant_.calls[variant_.events[event].index];
  }
  std::string_view OpAt(std::size_t event) const {
    return BaseName(job_.strings[CallAt(event).op]);
  }
  const LayoutRecord& LayoutOf(const TensorUse& use) const { return job_.layouts[use.layout]; }
  bool Because(std::string why) {
    why_ = std::move(why);
    return false;
  }

  /// nll_loss(log_probabilities, labels, weight, reduction, ignore_index)
  bool FindLoss(Storage log_probabilities) {
    read_ = AsLossReads(log_probabilities);
    const auto& readers = uses_.ReadersOf(read_);
    if (readers.empty() || OpAt(readers.front()) != "nll_loss_forward") return false;
    const CallRecord& call = CallAt(readers.front());
    const TensorUse* labels = TensorArg(call, 1);
    const auto* reduction = call.args.size() > 3 ? std::get_if<Number>(&call.args[3].is) : nullptr;
    if (labels == nullptr || call.results.size() != 2 || TensorArg(call, 2) != nullptr) {
      return false;
    }
    found_.forward = readers.front();
    found_.labels = *labels;
    found_.loss = call.results[0];
    found_.mean = reduction == nullptr || reduction->least() == 1;
    each_row_ = reduction != nullptr && reduction->least() == 0;
    found_.events.insert(found_.forward);
    found_.inner.insert(log_probabilities);
    found_.inner.insert(read_);
    found_.inner.insert(call.results[1].storage);
    return true;
  }

  /// A loss of reinforcement learning or of preferences: a number for each row, of single classes.
  std::optional<Result<LinearLoss>> OfLogProbabilities(const CallRecord& log_softmax) {
    const auto& readers = uses_.ReadersOf(log_softmax.results[0].storage);
    const TensorUse* logits = TensorArg(log_softmax, 0);
    if (logits == nullptr || readers.empty() || OpAt(readers.front()) != "gather") {
      return std::nullopt;
    }
    const std::size_t maker = uses_.MakerOf(logits->storage);
    if (maker != kNoCall && OpAt(maker) == "div") logits = TensorArg(CallAt(maker), 0);  // sampled
    if (logits == nullptr || !FindProduct(*logits)) return std::nullopt;
    return Result<LinearLoss>(
        Error{.message = "the loss is made of log-probabilities of single classes, and "
                         "plimsoll.chunked_log_probs, to be called by hand, computes those in "
                         "chunks",
              .hint = "leave out loss=chunked"});
  }

  /// Autocast leaves log_softmax its own type where F.cross_entropy is called with logits in half
  /// precision, and widens what it gives for nll_loss.
  Storage AsLossReads(Storage log_probabilities) {
    const auto& readers = uses_.ReadersOf(log_probabilities);
    if (readers.empty() || OpAt(readers.front()) != "_to_copy") return log_probabilities;
    const CallRecord& cast = CallAt(readers.front());
    if (cast.results.empty()) return log_probabilities;
    found_.events.insert(readers.front());
    return cast.results[0].storage;
  }

  /// Back from what log_softmax reads to the product that made it.
  bool FindProduct(const TensorUse& logits) {
    if (each_row_) return Because("the loss of each row is used by itself");
    for (TensorUse at = logits;;) {
      const std::size_t maker = uses_.MakerOf(at.storage);
      if (maker == kNoCall) return Because("no linear layer makes its logits");
      const CallRecord& call = CallAt(maker);
      const std::string_view op = OpAt(maker);
      found_.events.insert(maker);
      found_.inner.insert(at.storage);
      const TensorUse* from = TensorArg(call, 0);
      if (op == "mm") return ReadProduct(call, 0);
      if (op == "addmm") {
        if (from != nullptr) found_.bias = SourceOf(*from);
        return ReadProduct(call, 1);
      }
      const TensorUse* added = op == "add" ? TensorArg(call, 1) : nullptr;
      const bool adds_bias = added != nullptr && LayoutOf(*added).sizes.size() == 1 &&
                             parameters_.contains(SourceOf(*added).storage);
      if (from == nullptr || (op != "_to_copy" && op != "clone" && !adds_bias)) {
        return Because(
            fmt::format("{} stands between the last linear layer and its cross-entropy", op));
      }
      if (adds_bias) found_.bias = SourceOf(*added);
      at = *from;
    }
  }

  bool ReadProduct(const CallRecord& call, std::size_t left) {
    const TensorUse* hidden = TensorArg(call, left);
    const TensorUse* weight = TensorArg(call, left + 1);
    if (hidden == nullptr || weight == nullptr || call.results.empty() ||
        LayoutOf(*hidden).sizes.size() != 2 || LayoutOf(*weight).sizes.size() != 2) {
      return Because("no linear layer makes its logits");
    }
    found_.layer = call.module;
    found_.read_weight = *weight;
    found_.weight = SourceOf(*weight);
    if (!parameters_.contains(found_.weight.storage)) {
      return Because("its logits are no product with a parameter");
    }
    found_.type = LayoutOf(*hidden).dtype;
    found_.rows = LayoutOf(*hidden).sizes[0];
    found_.width = LayoutOf(*hidden).sizes[1];
    found_.classes = LayoutOf(*weight).sizes[1];
    found_.hidden = SourceOf(*hidden);
    const auto possible = [](const Number& n) {
      return n.all([](std::int64_t at) { return at > 0 && at <= kMostElements; });
    };
    if (!possible(found_.rows) || !possible(found_.width) || !possible(found_.classes)) {
      return Because("its logits have no size");
    }
    return true;
  }

  /// What it was before a cast, which is taken to be a part of the loss.
  TensorUse SourceOf(const TensorUse& use) {
    const std::size_t maker = uses_.MakerOf(use.storage);
    if (maker == kNoCall || OpAt(maker) != "_to_copy") return use;
    const TensorUse* from = TensorArg(CallAt(maker), 0);
    if (from == nullptr || LayoutOf(*from).dtype == LayoutOf(use).dtype) return use;
    casts_.insert({maker, use.storage});
    return *from;
  }

  bool FindBackward() {
    for (const std::size_t reader : uses_.ReadersOf(read_)) {
      if (OpAt(reader) == "nll_loss_backward") found_.backward = reader;
    }
    if (found_.backward == 0) return Because("it has no backward");
    const CallRecord& call = CallAt(found_.backward);
    const TensorUse* outer = TensorArg(call, 0);
    if (outer == nullptr || call.results.empty()) return Because("it has no backward");
    found_.outer = *outer;
    found_.events.insert(found_.backward);
    std::vector<Storage> open = {call.results[0].storage};
    while (!open.empty()) {
      const Storage gradient = open.back();
      open.pop_back();
      if (!found_.inner.insert(gradient).second) continue;
      for (const std::size_t reader : uses_.ReadersOf(gradient)) {
        if (!FollowGradient(reader, gradient, open)) return false;
      }
    }
    return true;
  }

  /// From a gradient of the logits to the next one, or to a gradient that is a result.
  bool FollowGradient(std::size_t event, Storage gradient, std::vector<Storage>& open) {
    const CallRecord& call = CallAt(event);
    const std::string_view op = OpAt(event);
    if (call.results.empty() || call.fresh.empty()) {
      return Because(fmt::format("{} works on the gradient of its logits", op));
    }
    found_.events.insert(event);
    if (op == "mm") {
      const TensorUse* left = TensorArg(call, 0);
      const TensorUse* right = TensorArg(call, 1);
      if (left == nullptr || right == nullptr) return Because("its backward has other products");
      const TensorUse& other = left->storage == gradient ? *right : *left;
      const bool of_hidden = SourceOf(other).storage == found_.weight.storage;
      (of_hidden ? found_.hidden_gradient : found_.weight_gradient) = Final(call.results[0]);
    } else if (op == "sum") {
      found_.bias_gradient = Final(call.results[0]);
    } else if (op == "_log_softmax_backward_data" || op == "_to_copy" || op == "clone" ||
               op == "slice_backward") {
      open.push_back(call.results[0].storage);
    } else {
      return Because(fmt::format("{} reads the gradient of its logits", op));
    }
    return true;
  }

  /// A gradient after the cast to the type of what it is the gradient of.
  TensorUse Final(const TensorUse& gradient) {
    const auto& readers = uses_.ReadersOf(gradient.storage);
    if (readers.size() != 1 || OpAt(readers[0]) != "_to_copy") return gradient;
    found_.events.insert(readers[0]);
    found_.inner.insert(gradient.storage);
    return CallAt(readers[0]).results.front();
  }

  /// Whether nobody else reads the logits; casts that others read too stay.
  bool OnlyHere() {
    for (const auto& [maker, storage] : casts_) {
      const auto& readers = uses_.ReadersOf(storage);
      const bool shared = std::any_of(readers.begin(), readers.end(), [&](std::size_t reader) {
        return !found_.events.contains(reader);
      });
      if (shared) continue;
      found_.events.insert(maker);
      found_.inner.insert(storage);
    }
    casts_.clear();
    for (const Storage storage : found_.inner) {
      for (const std::size_t reader : uses_.ReadersOf(storage)) {
        if (found_.events.contains(reader)) continue;
        return Because(fmt::format("its logits are used by {} too", OpAt(reader)));
      }
    }
    return true;
  }

  const Job& job_;
  const Variant& variant_;
  const Uses& uses_;
  std::set<Storage> parameters_;
  LinearLoss found_;
  /// The log-probabilities, as nll_loss reads them.
  Storage read_ = kElsewhere;
  /// Of hidden states and weight: the cast and what it makes.
  std::set<std::pair<std::size_t, Storage>> casts_;
  bool each_row_ = false;
  std::string why_;
};

}  // namespace

LinearLosses LookForLinearLosses(const Job& job, const Variant& variant) {
  const Uses uses(variant);
  LinearLosses losses;
  for (const std::size_t event : uses.forward()) {
    const CallRecord& call = variant.calls[variant.events[event].index];
    if (BaseName(job.strings[call.op]) != "_log_softmax") continue;
    std::optional<Result<LinearLoss>> found = LossFinder(job, variant, uses).From(event);
    if (!found) continue;
    if (*found) {
      losses.found.push_back(std::move(**found));
    } else {
      const Bytes logits = call.fresh.empty() ? 0 : call.fresh.front().bytes.least();
      losses.refused.push_back({.logits = logits, .why = found->error()});
    }
  }
  return losses;
}

Result<std::vector<LinearLoss>> FindLinearLosses(const Job& job, const Variant& variant) {
  LinearLosses losses = LookForLinearLosses(job, variant);
  if (!losses.found.empty()) return std::move(losses.found);
  if (!losses.refused.empty()) return losses.refused.back().why;
  return Error{.message = "the loss is no cross-entropy over a linear layer",
               .hint = "leave out loss=chunked"};
}

}  // namespace plimsoll
