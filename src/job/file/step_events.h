// The events of one variant of a step file, as they come, and then its releases.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "files/json.h"
#include "files/read_budget.h"
#include "job/file/job.h"

namespace plimsoll::step_file {

class EventReader {
 public:
  /// `strings` are the file's. All are looked at while events are read; the variant is of the job.
  EventReader(Job& job, const std::vector<StringId>& strings, std::size_t variant,
              ReadBudget& budget)
      : job_(job), strings_(strings), variant_(variant), budget_(budget) {}

  void Read(const Json& event);
  /// After the last event.
  void End();
  void ReadRelease(const Json& json);

 private:
  Variant& variant() { return job_.variants[variant_]; }
  void ReadParts(const Json& json);
  void ReadCall(const Json& json);
  void ReadModelTensor(const Json& json, bool buffer);
  void ReadStage(const Json& json);
  void ReadPart(const Json& json);
  void ReadLabel(const Json& json);
  void CheckGrowing();
  TensorUse ReadTensor(const Json& json);
  Argument ReadArgument(const Json& json, int depth);
  Storage ReadStorage(const Json& value);
  StringId ReadString(const Json& value) const;
  std::uint32_t ReadLayoutIndex(const Json& value) const;
  void Add(const JobEvent& event);
  /// Twice, since a list that grows takes up to that. Where the budget is spent, reading ends.
  template <typename T>
  void Keep() {
    budget_.Take(2 * sizeof(T));
  }

  Job& job_;
  const std::vector<StringId>& strings_;
  std::size_t variant_;
  ReadBudget& budget_;
  std::int64_t mentions_ = 0;
  /// By event of the file: the first of those that it became. A label becomes one for each storage.
  std::vector<std::size_t> begins_;
};

}  // namespace plimsoll::step_file
