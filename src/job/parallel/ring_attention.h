// Attention over a sequence whose positions are divided: keys and values of all ranks are gathered
// or handed around, and what comes of each part is merged, as torch's context_parallel does it.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "job/file/job.h"
#include "job/parallel/collective.h"
#include "job/transforms/job_editor.h"

namespace plimsoll {

struct Ring {
  std::int64_t ranks = 2;
  std::int64_t apart = 1;
  /// Keys and values are handed from rank to rank (alltoall); else all are gathered at once.
  bool hands_on = false;
  /// Which of the ranks: it decides over how many positions a part goes.
  std::int64_t rank = 0;
};

class RingAttention {
 public:
  /// Writes with `edit`.
  RingAttention(Job& job, JobEditor& edit, const Ring& ring)
      : job_(job), edit_(edit), ring_(ring) {}

  /// A call of plimsoll.attention, or of its backward, as this rank has it of its own positions.
  void Forward(const CallRecord& call);
  void Backward(const CallRecord& call);

 private:
  struct Part {
    TensorUse query, key, value;
    /// Half of the queries, against all keys of another rank; else all, against half of them.
    bool half_queries = false;
  };
  struct Merged {
    TensorUse output, logsumexp;
  };

  std::uint32_t Dense(std::uint32_t layout);
  std::uint32_t Halved(std::uint32_t layout);
  std::uint32_t InFull(std::uint32_t layout);
  std::uint32_t Flat(const TensorUse& one, std::int64_t times);

  Storage Make(std::string_view op, std::uint32_t layout, Storage into = kElsewhere);
  TensorUse MakeUse(std::string_view op, std::uint32_t layout, Storage into = kElsewhere);
  Storage Exchange(Collective::Kind kind, std::uint32_t layout);
  TensorUse Contiguous(const TensorUse& use);
  /// What goes around; the buffer that there was goes.
  void HandOn(const Part& own, std::int64_t step, Storage& buffer);
  Part PartOfStep(const Part& own, std::int64_t step);

  Merged Attend(const CallRecord& call, const Part& part);
  void Merge(Merged& sum, const Merged& next, const Part& part);

  Job& job_;
  JobEditor& edit_;
  const Ring ring_;
  StringId module_;
  bool causal_ = false;
};

}  // namespace plimsoll
