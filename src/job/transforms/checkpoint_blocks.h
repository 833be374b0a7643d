// What can be checkpointed, and how people name it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/file/job.h"

namespace plimsoll {

/// The members of numbered lists ("transformer.h.3"), in the order in which the forward runs them.
std::vector<std::string> CheckpointBlocks(const Job& job, const Variant& variant);

/// Every module that `checkpoint_wrapper` can be put around so that the results stay the same: it
/// is called once in each forward, and writes into nothing that others made. Also modules that are
/// part of others; in the order of the forward, the outer before the inner.
std::vector<std::string> CheckpointModules(const Job& job, const Variant& variant);

/// Modules that are computed again together: only what goes into the first of each is kept.
using CheckpointSegments = std::vector<std::vector<std::string>>;

/// Which modules to checkpoint, whatever the job: of which job's blocks is seen when it is
/// resolved.
struct Checkpointing {
  enum class Rule : std::uint8_t {
    /// The first of every so many blocks, each by itself.
    kEvery,
    /// About as many segments as each has blocks.
    kRoot,
    kNamed,
  };
  Rule rule = Rule::kEvery;
  std::size_t every = 1;
  /// Blocks, or other modules.
  std::vector<std::string> names = {};
};

/// "all", "every:2", "sqrt", or names with commas between them.
Result<Checkpointing> ParseCheckpointing(std::string_view text);
/// As ParseCheckpointing takes it.
std::string CheckpointingText(const Checkpointing& checkpointing);

/// What that is of a job with these blocks, and with these modules beside them.
Result<CheckpointSegments> ResolveCheckpointing(const Checkpointing& checkpointing,
                                                const std::vector<std::string>& blocks,
                                                const std::vector<std::string>& modules = {});

/// "a", "a.b" and "a.b.c" of "a.b.c".
void ForEachModuleAround(std::string_view path, const std::function<void(std::string_view)>& each);
/// Whether a module is another one or part of it.
bool IsPartOf(std::string_view path, std::string_view around);

/// What an operator like aten.relu_ works in place on.
std::optional<Storage> WrittenBy(const Job& job, const CallRecord& call);

}  // namespace plimsoll
