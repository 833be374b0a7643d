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
#include "job/transforms/kept_calls.h"

namespace plimsoll {

/// The members of numbered lists ("transformer.h.3"), in the order in which the forward runs them.
std::vector<std::string> CheckpointBlocks(const Job& job, const Variant& variant);

/// Every module that `checkpoint_wrapper` can be put around so that the results stay the same: it
/// is called once in each forward, writes into nothing that others made nor into the model, changes
/// no list that it is given, and finds what it was given as it was. Also modules that are part of
/// others; in the order of the forward, the outer before the inner.
std::vector<std::string> CheckpointModules(const Job& job, const Variant& variant);

/// Modules that are computed again together: only what goes into the first of them is kept, and
/// what single calls make, if it says so. Or a module whose results wait on the host.
struct CheckpointSegment {
  std::vector<std::string> modules;
  std::vector<KeptCall> kept = {};
  /// On the host from when this module is done until its backward begins; empty where they are
  /// computed again.
  std::string waits_for = {};

  /// "h.0", "h.0[addmm+attention]", "h.0[host:h.3]"; of one module.
  std::string Text() const;
  /// "addmm+attention", "host:h.3"; empty where it is computed again as a whole.
  std::string KeptText() const;
  bool on_host() const { return !waits_for.empty(); }
};
using CheckpointSegments = std::vector<CheckpointSegment>;
Result<CheckpointSegment> ParseCheckpointSegment(std::string_view text);

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
  /// In each, where the rule names the blocks.
  std::vector<KeptCall> kept = {};
  /// Blocks, or other modules, each by itself.
  CheckpointSegments named = {};
};

/// "all", "every:2", "sqrt", or names with commas between them. What is kept of a module stands
/// behind it: "all[mm+attention]", "h.0[addmm@1],h.1"; and that its results wait
/// on the host for another module: "h.0[host:h.3]".
Result<Checkpointing> ParseCheckpointing(std::string_view text);
/// As ParseCheckpointing takes it.
std::string CheckpointingText(const Checkpointing& checkpointing);

/// What that is of a job with these blocks, and with these modules beside them.
Result<CheckpointSegments> ResolveCheckpointing(const Checkpointing& checkpointing,
                                                const std::vector<std::string>& blocks,
                                                const std::vector<std::string>& modules = {});

/// Whether each is the same when it is computed again.
std::optional<Error> CannotRepeat(const Job& job, const CheckpointSegments& segments);
/// Whether PyTorch can keep what the segments say, and the results stay the same.
std::optional<Error> CannotKeep(const Job& job, const Variant& variant,
                                const CheckpointSegments& segments);

/// "a", "a.b" and "a.b.c" of "a.b.c".
void ForEachModuleAround(std::string_view path, const std::function<void(std::string_view)>& each);
/// Whether a module is another one or part of it.
bool IsPartOf(std::string_view path, std::string_view around);

/// What an operator like aten.relu_ works in place on, or one like aten.div.out fills.
std::optional<Storage> WrittenBy(const Job& job, const CallRecord& call);

}  // namespace plimsoll
