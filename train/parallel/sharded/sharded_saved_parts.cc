#include "train/parallel/sharded/sharded_saved_parts.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "base/printable.h"
#include "train/state/layout.h"

namespace plimsoll::train {
namespace {

using Run = ShardedLayout::Run;
namespace fs = std::filesystem;

}  // namespace

SavedParts::SavedParts(const fs::path& path, ShardedLayout here, int rank)
    : here_(std::move(here)),
      rank_(rank),
      loader_(StateLoader::Open(path)),
      files_(path, loader_),
      there_(ShardedLayout::Take(loader_)) {
  files_.Take(loader_, there_.ranks());
  optimizers_ = loader_.Count("optimizers");
  extra_ = loader_.Bytes("extra");
  loader_.CheckThatNothingIsLeft();
  About([&] { here_.CheckHasAllOf(there_); });
}

const SavedPart& SavedParts::OfRank(int rank) {
  std::unique_ptr<SavedPart>& part = parts_[rank];
  if (!part) part = std::make_unique<SavedPart>(files_.Open(rank));
  return *part;
}

std::vector<Run> SavedParts::RunsOf(std::size_t group) const {
  // With what fills it up.
  if (same_layout()) return {{rank_, group, 0, 0, here_.PartSize(group)}};
  std::vector<Run> runs;
  About([&] { runs = here_.RunsFrom(there_, group, rank_); });
  return runs;
}

std::set<std::pair<int, std::size_t>> SavedParts::SourcesOf(std::size_t group) const {
  std::set<std::pair<int, std::size_t>> sources;
  for (const Run& run : RunsOf(group)) sources.emplace(run.rank, run.group);
  if (sources.empty()) About([&] { sources.emplace(0, here_.GroupIn(there_, group)); });
  return sources;
}

at::Tensor SavedParts::Joined(
    std::size_t group, at::ScalarType type,
    const std::function<at::Tensor(int rank, std::size_t group)>& tensor) const {
  const at::Tensor part = at::zeros({here_.PartSize(group)}, type);
  for (const Run& run : RunsOf(group)) {
    part.narrow(0, run.to, run.count)
        .copy_(tensor(run.rank, run.group).flatten().narrow(0, run.begin, run.count));
  }
  return part;
}

void SavedParts::About(const std::function<void()>& function) const {
  try {
    function();
  } catch (const c10::Error& error) {
    Fail(std::string(error.what_without_backtrace()) + "; it is the state of another model");
  }
}

}  // namespace plimsoll::train
