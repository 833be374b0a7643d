#include "job/parallel/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace plimsoll {
namespace {

using Spread = Placement::Kind;

Error NotModelled(const OperatorCall& call, std::string_view why) {
  return Error{.message = fmt::format("{} {}", call.op, why),
               .hint =
                   "how ranks would share it is not modelled: leave out this dimension of the "
                   "mesh"};
}

Outcome AllWhole(const OperatorCall& call) {
  return {.wishes = std::vector<Wish>(call.operands.size()),
          .results = std::vector<Placement>(call.results.size())};
}

bool SameSize(const LayoutRecord& a, std::size_t i, const LayoutRecord& b, std::size_t j) {
  return i < a.sizes.size() && j < b.sizes.size() && a.sizes[i] == b.sizes[j];
}

/// The operand's dimension, counted in a tensor of so many: as broadcasting aligns them.
std::optional<std::size_t> Aligned(const Operand& operand, std::size_t dimensions) {
  const std::size_t own = operand.layout->sizes.size();
  const std::size_t at = operand.placement.dimension + dimensions;
  if (at < own) return std::nullopt;
  return at - own;
}

/// The one that decides: divided, and the largest.
const Operand* Leading(const OperatorCall& call) {
  const Operand* leading = nullptr;
  for (const Operand& operand : call.operands) {
    if (!operand.placement.divided()) continue;
    if (leading == nullptr || operand.layout->sizes.size() > leading->layout->sizes.size()) {
      leading = &operand;
    }
  }
  return leading;
}

/// Others take their slice where they have as many along that dimension.
void SliceOthers(const OperatorCall& call, const Operand& leading, Outcome& outcome) {
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    const Operand& other = call.operands[i];
    const std::size_t own = other.layout->sizes.size();
    const std::size_t dims = leading.layout->sizes.size();
    if (other.placement.kind != Spread::kWhole || own + leading.placement.dimension < dims)
      continue;
    const std::size_t at = own + leading.placement.dimension - dims;
    if (!SameSize(*other.layout, at, *leading.layout, leading.placement.dimension)) continue;
    outcome.wishes[i] = {Wish::Kind::kSlice, at, leading.placement.axis};
  }
}

/// Each result has the dimension where the operands have it.
Result<Outcome> PlacedPointwise(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return outcome;
  for (const Operand& other : call.operands) {
    if (other.placement.divided() && other.placement.axis != leading->placement.axis) {
      return NotModelled(call, "has operands that are divided in two ways");
    }
  }
  SliceOthers(call, *leading, outcome);
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    const LayoutRecord& result = *call.results[r];
    const std::optional<std::size_t> at = Aligned(*leading, result.sizes.size());
    if (result.sizes.empty()) continue;
    const bool same = at && SameSize(*leading->layout, leading->placement.dimension, result, *at);
    if (!same) return NotModelled(call, "changes the size of what is divided");
    outcome.results[r] = Placement::Divided(leading->placement.axis, *at);
  }
  return outcome;
}

/// Numbers in a list, or one: dimensions, counted from the front.
std::set<std::size_t> Dimensions(const OperatorCall& call, std::size_t argument, std::size_t of) {
  std::set<std::size_t> found;
  const auto add = [&](const Argument& one) {
    const auto* number = std::get_if<Number>(&one.is);
    if (number == nullptr) return;
    const std::int64_t n = number->least();
    found.insert(static_cast<std::size_t>(n < 0 ? n + static_cast<std::int64_t>(of) : n));
  };
  if (argument >= call.record->args.size()) return found;
  const Argument& given = call.record->args[argument];
  if (const auto* list = std::get_if<Argument::List>(&given.is)) {
    for (const Argument& one : *list) add(one);
  } else {
    add(given);
  }
  return found;
}

std::optional<std::size_t> DimensionArgument(const OperatorCall& call, std::size_t argument,
                                             std::size_t of) {
  const std::set<std::size_t> found = Dimensions(call, argument, of);
  if (found.empty()) return std::nullopt;
  return *found.begin();
}

/// sum, mean, amax and so on: over the dimensions of their second argument, or over all.
Result<Outcome> PlacedReduction(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr || call.results.empty()) return outcome;
  const std::size_t dims = leading->layout->sizes.size();
  const std::set<std::size_t> reduced = Dimensions(call, 1, dims);
  const std::size_t at = leading->placement.dimension;
  if (reduced.empty() || reduced.contains(at)) {
    // What is left has to be summed up: a scalar, or the gradient of a weight.
    if (leading->placement.On(Axis::kFeatures) && !call.results[0]->sizes.empty()) {
      return NotModelled(call, "sums up over features that are divided");
    }
    return outcome;
  }
  const bool keeps = call.results[0]->sizes.size() == dims;
  const auto before = static_cast<std::size_t>(
      std::ranges::count_if(reduced, [&](std::size_t dimension) { return dimension < at; }));
  for (Placement& result : outcome.results) {
    result = Placement::Divided(leading->placement.axis, keeps ? at : at - before);
  }
  return outcome;
}

// Products of matrices.

struct Factors {
  std::size_t a = 0;
  std::size_t b = 0;
};

std::optional<Wish> AxesApart(const Placement& one, const Placement& other) {
  const bool apart = one.On(Axis::kPositions) && other.On(Axis::kFeatures);
  if (!apart) return std::nullopt;
  return Wish{Wish::Kind::kWhole, 0, Axis::kPositions};
}

/// Rows, columns or the inner dimension of one factor: which dimension of it that is.
struct Roles {
  std::size_t outer = 0;
  std::size_t inner = 0;
};

Result<Outcome> ProductOf(const OperatorCall& call, Factors of) {
  Outcome outcome = AllWhole(call);
  Placement a = call.operands[of.a].placement;
  Placement b = call.operands[of.b].placement;
  if (const auto wish = AxesApart(a, b)) {
    outcome.wishes[of.a] = *wish;
    a = Placement::Whole();
  }
  if (const auto wish = AxesApart(b, a)) {
    outcome.wishes[of.b] = *wish;
    b = Placement::Whole();
  }
  if (!a.divided() && !b.divided()) return outcome;
  const std::size_t dims = call.operands[of.a].layout->sizes.size();
  if (dims < 2 || call.operands[of.b].layout->sizes.size() != dims || call.results.empty()) {
    return NotModelled(call, "is no product of matrices");
  }
  const Roles rows{.outer = dims - 2, .inner = dims - 1};
  const Roles columns{.outer = dims - 1, .inner = dims - 2};
  const bool inner =
      (a.divided() && a.dimension == rows.inner) || (b.divided() && b.dimension == columns.inner);
  const Axis axis = a.divided() ? a.axis : b.axis;
  if (inner) {
    if (!a.divided()) outcome.wishes[of.a] = {Wish::Kind::kPart, rows.inner, axis};
    if (!b.divided()) outcome.wishes[of.b] = {Wish::Kind::kPart, columns.inner, axis};
    const bool both = (!a.divided() || a.dimension == rows.inner) &&
                      (!b.divided() || b.dimension == columns.inner);
    if (!both) return NotModelled(call, "has factors that are divided in two ways");
    // Over positions it is the gradient of a weight: whoever sums up gradients does it.
    outcome.results[0] = axis == Axis::kFeatures ? Placement::Partial() : Placement::Whole();
    return outcome;
  }
  const bool batch = a.divided() && b.divided();
  if (batch && (a.dimension != b.dimension || a.dimension + 2 >= dims + 1)) {
    return NotModelled(call, "has factors that are divided in two ways");
  }
  outcome.results[0] = Placement::Divided(axis, a.divided() ? a.dimension : b.dimension);
  if (batch || dims < 3) return outcome;
  // Batches of products: the other factor has the same batches.
  const Placement& divided = a.divided() ? a : b;
  if (divided.dimension + 2 < dims) {
    const std::size_t other = a.divided() ? of.b : of.a;
    outcome.wishes[other] = {Wish::Kind::kSlice, divided.dimension, axis};
  }
  return outcome;
}

/// A sum that the product is added to is divided with it, or small.
Result<Outcome> PlacedProduct(const OperatorCall& call) {
  if (call.operands.size() < 2) return NotModelled(call, "has no two factors");
  const std::size_t first = call.operands.size() - 2;
  return ProductOf(call, {first, first + 1});
}

// What works along one dimension.

/// Normalizations: over the last dimensions, which have to be whole. Results of as many dimensions
/// are divided as the input is, gradients of weights are not.
Result<Outcome> PlacedNormalization(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return outcome;
  std::size_t over = 1;
  for (const Argument& argument : call.record->args) {
    const auto* list = std::get_if<Argument::List>(&argument.is);
    const bool numbers =
        list != nullptr && !list->empty() && std::holds_alternative<Number>(list->front().is);
    if (numbers) over = list->size();
  }
  const std::size_t dims = leading->layout->sizes.size();
  if (leading->placement.dimension + over >= dims) {
    return NotModelled(call, "normalizes over what is divided");
  }
  SliceOthers(call, *leading, outcome);
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    if (call.results[r]->sizes.size() != dims) continue;
    outcome.results[r] = leading->placement;
  }
  return outcome;
}

/// Along the dimension it needs the whole; a loss over parts of the vocabulary is the caller's.
Result<Outcome> PlacedSoftmax(const OperatorCall& call, std::size_t argument) {
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return AllWhole(call);
  const auto along = DimensionArgument(call, argument, leading->layout->sizes.size());
  const bool logarithm = call.op.find("_log_softmax") != std::string_view::npos;
  if (along == leading->placement.dimension && !logarithm) {
    return NotModelled(call, "goes along what is divided");
  }
  return PlacedPointwise(call);
}

Result<Outcome> PlacedNllLoss(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return outcome;
  SliceOthers(call, *leading, outcome);
  for (std::size_t r = 0; r < call.results.size(); ++r) {
    const LayoutRecord& result = *call.results[r];
    const std::size_t at = leading->placement.dimension;
    if (SameSize(*leading->layout, at, result, at)) {
      outcome.results[r] = leading->placement;
    }
  }
  // The labels of positions that are divided are divided, too.
  return outcome;
}

/// cat: along what is divided as well, where that is features: those of a joint projection.
Result<Outcome> PlacedConcatenation(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return outcome;
  const std::size_t dims = leading->layout->sizes.size();
  const std::size_t along = DimensionArgument(call, 1, dims).value_or(0);
  if (along == leading->placement.dimension) {
    const bool all = std::ranges::all_of(call.operands, [&](const Operand& operand) {
      return operand.placement == leading->placement;
    });
    if (!all || leading->placement.axis == Axis::kPositions) {
      return NotModelled(call, "joins along what is divided");
    }
  } else {
    SliceOthers(call, *leading, outcome);
  }
  outcome.results.assign(call.results.size(), leading->placement);
  return outcome;
}

/// Of a view that is a part of a larger tensor, and what ranks of another dimension of the mesh
/// make: the same dimension, whatever its size.
Result<Outcome> PlacedPartOfLarger(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr || call.results.empty()) return outcome;
  const bool same = leading->layout->sizes.size() == call.results[0]->sizes.size();
  if (!same) return NotModelled(call, "changes the size of what is divided");
  outcome.results[0] = leading->placement;
  return outcome;
}

Result<Outcome> PlacedEmbedding(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  if (call.operands.size() < 2 || call.results.empty()) return outcome;
  if (call.operands[0].placement.divided()) outcome.results[0] = Placement::Partial();
  const Placement& indices = call.operands[1].placement;
  if (indices.divided()) outcome.results[0] = indices;
  return outcome;
}

Result<Outcome> PlacedEmbeddingBackward(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  if (call.operands.size() < 2 || !call.operands[0].placement.divided()) return outcome;
  if (!call.operands[1].placement.divided()) outcome.wishes[0] = {Wish::Kind::kWhole};
  return outcome;
}

/// [batch, heads, positions, size of a head], by heads.
Result<Outcome> PlacedAttention(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  const Operand* const leading = Leading(call);
  if (leading == nullptr) return outcome;
  if (leading->layout->sizes.size() < 3) return NotModelled(call, "has no heads");
  const std::size_t heads = leading->layout->sizes.size() - 3;
  if (leading->placement.axis != Axis::kFeatures || leading->placement.dimension != heads) {
    return NotModelled(call, "is divided otherwise than by heads");
  }
  for (const Operand& operand : call.operands) {
    if (!operand.placement.divided()) continue;
    const Number& size = operand.layout->sizes[operand.placement.dimension];
    const bool whole = size.all([&](std::int64_t n) { return n % call.parts == 0; });
    if (!whole) {
      return Error{.message = fmt::format("{} heads of attention cannot be divided by {}",
                                          size.least(), call.parts),
                   .hint = "take a number of tensor-parallel ranks that divides them"};
    }
  }
  SliceOthers(call, *leading, outcome);
  outcome.results.assign(call.results.size(), Placement::Divided(Axis::kFeatures, heads));
  return outcome;
}

/// Lists of an optimizer, member by member.
Result<Outcome> PlacedLists(const OperatorCall& call) {
  Outcome outcome = AllWhole(call);
  for (const Operand& of : call.operands) {
    if (!of.placement.divided()) continue;
    for (std::size_t i = 0; i < call.operands.size(); ++i) {
      const Operand& other = call.operands[i];
      const bool beside = other.member == of.member && other.placement.kind == Spread::kWhole &&
                          other.layout->sizes == of.layout->sizes && !of.layout->sizes.empty();
      if (beside)
        outcome.wishes[i] = {Wish::Kind::kPart, of.placement.dimension, of.placement.axis};
    }
    const std::size_t r = of.member;
    if (r < call.results.size() && call.results[r]->sizes == of.layout->sizes) {
      outcome.results[r] = of.placement;
    }
  }
  return outcome;
}

bool IsOneOf(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

Result<Outcome> OutcomeOf(const OperatorCall& call) {
  const std::string_view name = BaseName(call.op);
  if (name.starts_with("_foreach_") || name.starts_with("_fused_ad") ||
      name.starts_with("_fused_sgd")) {
    return PlacedLists(call);
  }
  if (Leading(call) == nullptr && !IsOneOf(name, {"embedding"})) return AllWhole(call);
  if (IsOneOf(name, {"mm", "addmm", "bmm", "baddbmm"})) return PlacedProduct(call);
  if (IsOneOf(name, {"attention", "attention_backward"})) return PlacedAttention(call);
  if (IsOneOf(name, {"native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm",
                     "_fused_rms_norm_backward"})) {
    return PlacedNormalization(call);
  }
  if (IsOneOf(name, {"sum", "mean", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm",
                     "norm", "any", "all"})) {
    return PlacedReduction(call);
  }
  if (IsOneOf(name, {"_softmax", "_log_softmax"})) return PlacedSoftmax(call, 1);
  if (IsOneOf(name, {"_softmax_backward_data", "_log_softmax_backward_data"})) {
    return PlacedSoftmax(call, 2);
  }
  if (name.starts_with("nll_loss")) return PlacedNllLoss(call);
  if (IsOneOf(name, {"cat"})) return PlacedConcatenation(call);
  if (IsOneOf(name, {"slice_backward", "slice_scatter", "divided", "all_gather", "all_reduce",
                     "reduce_scatter"})) {
    return PlacedPartOfLarger(call);
  }
  if (IsOneOf(name, {"embedding"})) return PlacedEmbedding(call);
  if (IsOneOf(name, {"embedding_dense_backward"})) return PlacedEmbeddingBackward(call);
  return PlacedPointwise(call);
}

}  // namespace plimsoll
