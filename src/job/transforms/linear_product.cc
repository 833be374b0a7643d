#include "job/transforms/linear_product.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {

std::string LinearProduct::FindFrom(const TensorUse& logits, const OnTheWay& way) {
  for (TensorUse at = logits;;) {
    const std::size_t maker = uses_.MakerOf(at.storage);
    if (maker == kNoCall) return "no linear layer makes its logits";
    const CallRecord& call = uses_.CallAt(maker);
    const std::string_view op = uses_.OpAt(maker);
    found_.events.insert(maker);
    found_.inner.insert(at.storage);
    logits_ = at.storage;
    const TensorUse* from = TensorArg(call, 0);
    if (op == "mm") return ReadProduct(call, 0);
    if (op == "addmm") {
      if (from != nullptr) found_.bias = SourceOf(*from);
      return ReadProduct(call, 1);
    }
    const TensorUse* added = op == "add" ? TensorArg(call, 1) : nullptr;
    const bool adds_bias = added != nullptr && uses_.LayoutOf(*added).sizes.size() == 1 &&
                           uses_.IsParameter(SourceOf(*added).storage);
    const bool scales = way.scaled && op == "div" && TensorArg(call, 1) == nullptr;
    if (from == nullptr || (op != "_to_copy" && op != "clone" && !adds_bias && !scales)) {
      return fmt::format("{} stands between the last linear layer and {}", op, way.loss);
    }
    if (adds_bias) found_.bias = SourceOf(*added);
    at = *from;
  }
}

std::string LinearProduct::ReadProduct(const CallRecord& call, std::size_t left) {
  const TensorUse* hidden = TensorArg(call, left);
  const TensorUse* weight = TensorArg(call, left + 1);
  if (hidden == nullptr || weight == nullptr || call.results.empty() ||
      uses_.LayoutOf(*hidden).sizes.size() != 2 || uses_.LayoutOf(*weight).sizes.size() != 2) {
    return "no linear layer makes its logits";
  }
  found_.layer = call.module;
  found_.read_weight = *weight;
  found_.weight = SourceOf(*weight);
  if (!uses_.IsParameter(found_.weight.storage))
    return "its logits are no product with a parameter";
  found_.type = uses_.LayoutOf(*hidden).dtype;
  found_.rows = uses_.LayoutOf(*hidden).sizes[0];
  found_.width = uses_.LayoutOf(*hidden).sizes[1];
  found_.classes = uses_.LayoutOf(*weight).sizes[1];
  found_.hidden = SourceOf(*hidden);
  const auto possible = [](const Number& n) {
    return n.all([](std::int64_t at) { return at > 0 && at <= kMostElements; });
  };
  if (!possible(found_.rows) || !possible(found_.width) || !possible(found_.classes)) {
    return "its logits have no size";
  }
  return {};
}

/// What it was before a cast, which is taken to be a part of the loss.
TensorUse LinearProduct::SourceOf(const TensorUse& use) {
  const std::size_t maker = uses_.MakerOf(use.storage);
  if (maker == kNoCall || uses_.OpAt(maker) != "_to_copy") return use;
  const TensorUse* from = TensorArg(uses_.CallAt(maker), 0);
  if (from == nullptr || uses_.LayoutOf(*from).dtype == uses_.LayoutOf(use).dtype) return use;
  casts_.insert({maker, use.storage});
  return *from;
}

std::string LinearProduct::TakeGradient(std::size_t event, Storage gradient) {
  const CallRecord& call = uses_.CallAt(event);
  if (uses_.OpAt(event) == "sum") {
    found_.bias_gradient = Final(call.results[0]);
    return {};
  }
  const TensorUse* left = TensorArg(call, 0);
  const TensorUse* right = TensorArg(call, 1);
  if (left == nullptr || right == nullptr) return "its backward has other products";
  const TensorUse& other = left->storage == gradient ? *right : *left;
  const bool of_hidden = SourceOf(other).storage == found_.weight.storage;
  (of_hidden ? found_.hidden_gradient : found_.weight_gradient) = Final(call.results[0]);
  return {};
}

/// A gradient after the cast to the type of what it is the gradient of.
TensorUse LinearProduct::Final(const TensorUse& gradient) {
  const auto& readers = uses_.ReadersOf(gradient.storage);
  if (readers.size() != 1 || uses_.OpAt(readers[0]) != "_to_copy") return gradient;
  found_.events.insert(readers[0]);
  found_.inner.insert(gradient.storage);
  return uses_.CallAt(readers[0]).results.front();
}

void LinearProduct::TakeOwnCasts() {
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
}

std::string LinearProduct::OnlyHere() const {
  for (const Storage storage : found_.inner) {
    for (const std::size_t reader : uses_.ReadersOf(storage)) {
      if (found_.events.contains(reader)) continue;
      return fmt::format("its logits are used by {} too", uses_.OpAt(reader));
    }
  }
  return {};
}

}  // namespace plimsoll
