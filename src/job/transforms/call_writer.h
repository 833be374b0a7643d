// Writes the calls of a function of Python's that takes the place of others, in their order.
#pragma once

#include <string_view>
#include <vector>

#include "job/transforms/job_editor.h"

namespace plimsoll {

inline constexpr Number kOneElement = {1, 1};

/// Calls of one place in the code and of one thread: those of `like`.
class CallWriter {
 public:
  CallWriter(Job& job, JobEditor& edit, const CallRecord& like)
      : job_(job), edit_(edit), like_(like) {}

  /// A tensor that lies as it was made; of a new storage where none is named.
  TensorUse Use(DType type, const std::vector<Number>& sizes, Storage storage = kElsewhere);
  /// Some of its rows.
  TensorUse Part(const TensorUse& of, const std::vector<Number>& sizes);
  /// A matrix the other way round, in the same memory.
  TensorUse Transposed(const TensorUse& of);
  DType TypeOf(const TensorUse& use) const { return job_.layouts[use.layout].dtype; }
  const LayoutRecord& LayoutOf(const TensorUse& use) const { return job_.layouts[use.layout]; }

  /// Makes `result`, and gives it back.
  TensorUse Make(std::string_view op, const TensorUse& result, std::vector<Argument> args = {});
  /// Makes `to`; who has it frees it.
  TensorUse Cast(const TensorUse& from, const TensorUse& to);
  /// torch.where(condition, x, 0): the number is a tensor as well.
  TensorUse Where(const TensorUse& condition, const TensorUse& x, const TensorUse& result);
  void InPlace(std::string_view op, const TensorUse& into, std::vector<Argument> args = {});
  /// Into memory that is there, which is no argument by position.
  void Out(std::string_view op, const TensorUse& into, std::vector<Argument> args);
  void Free(const TensorUse& use) { edit_.Free(use.storage); }

 private:
  CallRecord New(std::string_view op, const TensorUse& result, std::vector<Argument> args);

  Job& job_;
  JobEditor& edit_;
  const CallRecord like_;
};

}  // namespace plimsoll
