// What lines anywhere in a log tell of the job: what trains it, its stage of ZeRO, its batch, the
// model of a server, whether it had trained before it ran out. They are printed when a job starts
// and may stand megabytes above the message.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "timeline/message.h"

namespace plimsoll {

/// Where a phrase stands in a log.
struct FactPlace {
  std::string_view line;    // all of it, without what is far from the phrase
  std::string_view behind;  // the rest of the line
  std::string_view ahead;   // that, and some lines below
  std::string_view below;   // as many lines below as a long table has
  std::size_t offset = 0;   // of the phrase, in the log
};

class JobFactReader {
 public:
  /// What such lines have in common, for a PhraseFinder.
  static std::vector<std::string_view> Phrases();

  /// One of them was found at [begin, end) of a part that begins at `offset` of the log.
  void See(std::size_t phrase, std::string_view part, std::size_t begin, std::size_t end,
           std::size_t offset);
  /// What the message itself tells stays.
  void AddTo(OomMessage& message) const;

  // Each reads one kind of line.
  void ReadZeroStage(const FactPlace& place);
  void ReadZeroOptimization(const FactPlace& place);
  void ReadOffload(const FactPlace& place);
  void ReadDeepSpeedStep(const FactPlace& place);
  void ReadLoss(const FactPlace& place);
  void ReadDeviceBatch(const FactPlace& place);
  void ReadAccumulation(const FactPlace& place);
  void ReadBatchArgument(const FactPlace& place);
  void ReadTrained(const FactPlace& place);
  void ReadAutocast(const FactPlace& place);
  void ReadCheckpointing(const FactPlace& place);
  void ReadOwnLoop(const FactPlace& place);
  void ReadNcclError(const FactPlace& place);
  void ReadServedModel(const FactPlace& place);
  void ReadModelArgument(const FactPlace& place);
  void ReadLoadedModel(const FactPlace& place);
  void ReadHostUse(const FactPlace& place);
  void ReadTasks(const FactPlace& place);
  void ReadEngine(const FactPlace& place);

  /// How many errors of NCCL it has seen, as the ranks print that wait for one that died.
  std::int64_t nccl_errors() const { return nccl_errors_; }

 private:
  void NoteStep(std::size_t offset);
  void NoteModel(std::string_view name);

  Signs signs_;
  bool own_loop_ = false;
  std::int64_t nccl_errors_ = 0;
  std::optional<int> zero_stage_;
  std::optional<std::int64_t> device_batch_;
  std::optional<std::int64_t> accumulation_;
  std::optional<std::int64_t> trained_;
  std::string model_;
  std::optional<std::pair<HostUse, HostUse>> host_use_;
  std::vector<TaskUse> tasks_;
  /// Each with its place in the log.
  std::vector<std::pair<std::size_t, EngineSleep>> sleeps_;
  std::optional<Bytes> graph_estimate_;
  std::optional<std::size_t> first_step_;
  std::size_t looked_at_ = 0;
};

}  // namespace plimsoll
