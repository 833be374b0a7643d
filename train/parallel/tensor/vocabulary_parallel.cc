#include "train/parallel/tensor/vocabulary_parallel.h"

#include <c10/util/Exception.h>
#include <torch/types.h>

#include <vector>

namespace plimsoll::train {
namespace {

class VocabularyOverRanks : public SplitVocabulary {
 public:
  VocabularyOverRanks(Ranks& ranks, std::int64_t all, Outside outside)
      : ranks_(ranks), all_(all), outside_(outside) {
    TORCH_CHECK(all >= ranks.size(), "a vocabulary of ", all, " cannot be split among ",
                ranks.size(), " ranks.");
  }

  std::int64_t begin() const override { return PartOf(all_, ranks_).begin; }
  std::int64_t most() const override { return (all_ + ranks_.size() - 1) / ranks_.size(); }
  std::int64_t all() const override { return all_; }

  at::Tensor Enter(const at::Tensor& hidden) const override {
    return EnterSplit(hidden, outside_, ranks_);
  }

  at::Tensor Gather(const at::Tensor& part) const override {
    std::vector<std::int64_t> sizes = part.sizes().vec();
    sizes.insert(sizes.begin(), ranks_.size());
    at::Tensor whole = at::empty(sizes, part.options());
    ranks_.Gather(whole, part.contiguous().unsqueeze(0));
    return whole;
  }

  at::Tensor Join(const at::Tensor& logits) const override {
    return GatherFromRanks(logits, -1, all_, Then::kSame, ranks_);
  }

 private:
  Ranks& ranks_;
  std::int64_t all_;
  Outside outside_;
};

}  // namespace

at::Tensor LookUp(const at::Tensor& numbers, const at::Tensor& part, std::int64_t all,
                  Outside outside, Ranks& ranks) {
  const Part own = PartOf(all, ranks);
  // The first and the last rank take those that are in no table at all, and throw.
  at::Tensor here = at::ones_like(numbers, at::kBool);
  if (own.begin > 0) here.logical_and_(numbers >= own.begin);
  if (own.end() < all) here.logical_and_(numbers < own.end());
  const at::Tensor rows = at::embedding(part, at::where(here, numbers - own.begin, 0));
  return LeaveSplit(rows.masked_fill(here.logical_not().unsqueeze(-1), 0), outside, ranks);
}

std::shared_ptr<const SplitVocabulary> VocabularyOver(Ranks& ranks, std::int64_t all,
                                                      Outside outside) {
  return std::make_shared<VocabularyOverRanks>(ranks, all, outside);
}

}  // namespace plimsoll::train
