#include "train/parallel/ranks/collectives.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/types.h>

#include <functional>
#include <utility>
#include <vector>

namespace plimsoll::train {
namespace {

namespace autograd = torch::autograd;
/// The dimension of a sequence.
constexpr std::int64_t kPositions = -2;

using Backward = std::function<at::Tensor(const at::Tensor&)>;

/// How autograd keeps it.
struct Held : torch::CustomClassHolder {
  explicit Held(Backward given) : backward(std::move(given)) {}
  Backward backward;
};

struct Differentiated : autograd::Function<Differentiated> {
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& /*x*/,
                            const std::function<at::Tensor()>& forward, const Backward& backward) {
    context->saved_data["backward"] = at::IValue::make_capsule(c10::make_intrusive<Held>(backward));
    return forward();
  }

  static autograd::variable_list backward(autograd::AutogradContext* context,
                                          const autograd::variable_list& gradients) {
    const auto held = context->saved_data["backward"].toCapsule();
    return {static_cast<const Held&>(*held).backward(gradients[0]), {}, {}};
  }
};

/// What `forward` makes of x, which autograd does not look into.
at::Tensor Differentiable(const at::Tensor& x, const std::function<at::Tensor()>& forward,
                          const Backward& backward) {
  return Differentiated::apply(x, forward, backward);
}

at::Tensor Sum(const at::Tensor& x, Ranks& ranks) {
  at::Tensor sum = x.clone(at::MemoryFormat::Contiguous);
  ranks.Sum(sum);
  return sum;
}

at::Tensor Own(const at::Tensor& whole, std::int64_t dimension, const Ranks& ranks) {
  const Part part = PartOf(whole.size(dimension), ranks);
  // A copy, that does not keep the rest.
  return whole.narrow(dimension, part.begin, part.size).clone(at::MemoryFormat::Contiguous);
}

/// Ranks speak of what is contiguous: the dimension comes first.
at::Tensor SumParts(const at::Tensor& whole, std::int64_t dimension, Ranks& ranks) {
  // Parts of different lengths cannot be sent as one.
  if (whole.size(dimension) % ranks.size() != 0) return Own(Sum(whole, ranks), dimension, ranks);
  const at::Tensor given = whole.movedim(dimension, 0).contiguous();
  std::vector<std::int64_t> sizes = given.sizes().vec();
  sizes[0] /= ranks.size();
  at::Tensor part = at::empty(sizes, given.options());
  ranks.SumParts(part, given);
  return part.movedim(0, dimension);
}

at::Tensor Gather(const at::Tensor& part, std::int64_t dimension, std::int64_t whole,
                  Ranks& ranks) {
  TORCH_CHECK(part.size(dimension) == PartOf(whole, ranks).size, "rank ", ranks.rank(), " of ",
              ranks.size(), " cannot have ", part.size(dimension), " of ", whole,
              ": a length is split as evenly as it can be.");
  const std::int64_t longest = (whole + ranks.size() - 1) / ranks.size();
  at::Tensor given = part.movedim(dimension, 0);
  std::vector<std::int64_t> sizes = given.sizes().vec();
  if (sizes[0] < longest) {
    sizes[0] = longest - sizes[0];
    given = at::cat({given, at::zeros(sizes, given.options())});
  }
  sizes[0] = longest * ranks.size();
  at::Tensor all = at::empty(sizes, given.options());
  ranks.Gather(all, given.contiguous());
  if (sizes[0] != whole) {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < ranks.size(); ++rank) {
      parts.push_back(all.narrow(0, rank * longest, PartOf(whole, rank, ranks.size()).size));
    }
    all = at::cat(parts);
  }
  return all.movedim(0, dimension);
}

}  // namespace

Part PartOf(std::int64_t whole, int rank, int ranks) {
  const std::int64_t begin = whole * rank / ranks;
  return {begin, whole * (rank + 1) / ranks - begin};
}

at::Tensor CopyToRanks(const at::Tensor& x, Ranks& ranks) {
  if (ranks.alone()) return x;
  return Differentiable(
      x, [&] { return x.tensor_data(); },
      [&ranks](const at::Tensor& gradient) { return SumOverRanks(gradient, ranks); });
}

at::Tensor SumOverRanks(const at::Tensor& x, Ranks& ranks) {
  if (ranks.alone()) return x;
  return Differentiable(
      x, [&] { return Sum(x, ranks); },
      [&ranks](const at::Tensor& gradient) { return CopyToRanks(gradient, ranks); });
}

at::Tensor GatherFromRanks(const at::Tensor& part, std::int64_t dimension, std::int64_t whole,
                           Then then, Ranks& ranks) {
  if (ranks.alone()) return part;
  return Differentiable(
      part, [&] { return Gather(part, dimension, whole, ranks); },
      [dimension, then, &ranks](const at::Tensor& gradient) {
        return then == Then::kSame ? TakePart(gradient, dimension, ranks)
                                   : SumToParts(gradient, dimension, ranks);
      });
}

at::Tensor SumToParts(const at::Tensor& whole, std::int64_t dimension, Ranks& ranks) {
  if (ranks.alone()) return whole;
  return Differentiable(
      whole, [&] { return SumParts(whole, dimension, ranks); },
      [dimension, length = whole.size(dimension), &ranks](const at::Tensor& gradient) {
        return GatherFromRanks(gradient, dimension, length, Then::kWork, ranks);
      });
}

at::Tensor TakePart(const at::Tensor& whole, std::int64_t dimension, Ranks& ranks) {
  if (ranks.alone()) return whole;
  return Differentiable(
      whole, [&] { return Own(whole, dimension, ranks); },
      [dimension, length = whole.size(dimension), &ranks](const at::Tensor& gradient) {
        return GatherFromRanks(gradient, dimension, length, Then::kSame, ranks);
      });
}

void CheckSequence(std::int64_t positions, const Ranks& ranks) {
  TORCH_CHECK(positions % ranks.size() == 0, "a sequence of ", positions,
              " positions cannot be split evenly among ", ranks.size(), " ranks.");
}

at::Tensor EnterSplit(const at::Tensor& x, Outside outside, Ranks& ranks) {
  if (outside == Outside::kWhole) return CopyToRanks(x, ranks);
  return GatherFromRanks(x, kPositions, x.size(kPositions) * ranks.size(), Then::kWork, ranks);
}

at::Tensor LeaveSplit(const at::Tensor& x, Outside outside, Ranks& ranks) {
  if (outside == Outside::kWhole) return SumOverRanks(x, ranks);
  CheckSequence(x.size(kPositions), ranks);
  return SumToParts(x, kPositions, ranks);
}

}  // namespace plimsoll::train
