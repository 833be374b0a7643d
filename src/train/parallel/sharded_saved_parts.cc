#include "train/parallel/sharded_saved_parts.h"

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

fs::path PartsFolder(const fs::path& path) { return path.string() + ".parts"; }

fs::path PartFile(const fs::path& path, const std::string& save, int rank) {
  return PartsFolder(path) / (save + "." + std::to_string(rank));
}

SavedPart::SavedPart(const fs::path& file, const std::string& save, const WrittenPart& written)
    : name_(file.string()) {
  Result<Input> input = Input::Open(name_);
  TORCH_CHECK(input.ok(), Printable(input.error().ToLine()));
  input_ = std::make_unique<const Input>(std::move(*input));
  const std::string_view bytes = input_->bytes();
  if (static_cast<std::int64_t>(bytes.size()) != written.bytes) {
    Fail(c10::str("it has ", bytes.size(), " bytes, and ", written.bytes, " were saved"));
  }
  if (layout::Checksum(bytes) != written.checksum) {
    Fail("it is not what was saved: its checksum differs");
  }
  Result<StateFile> state = ReadState(*input_);
  TORCH_CHECK(state.ok(), Printable(state.error().ToLine()));
  state_ = std::move(*state);
  if (Value(kShardedSave) != StateValue(save)) Fail("it belongs to another save");
}

const StateValue& SavedPart::Value(const std::string& name) const {
  const auto found = state_.values.find(name);
  if (found == state_.values.end()) Fail("there is no '" + name + "' in it");
  return found->second;
}

at::Tensor SavedPart::Tensor(const std::string& name) const {
  const auto found = state_.tensors.find(name);
  if (found == state_.tensors.end()) Fail("there is no '" + name + "' in it");
  const StateTensor& saved = found->second;
  // Only read from, as the header asks.
  return at::from_blob(const_cast<char*>(saved.bytes.data()), saved.sizes,
                       at::TensorOptions(ScalarTypeOf(saved.type)));
}

void SavedPart::Fail(const std::string& what) const {
  TORCH_CHECK(false, Printable(name_), ": ", Printable(what));
}

SavedParts::SavedParts(const fs::path& path, ShardedLayout here, int rank)
    : path_(path), here_(std::move(here)), rank_(rank), loader_(StateLoader::Open(path)) {
  save_ = loader_.Text(kShardedSave);
  there_ = ShardedLayout::Take(loader_);
  for (int i = 0; i < there_.ranks(); ++i) {
    written_.push_back({loader_.Count(c10::str("file ", i, " bytes")),
                        loader_.Count(c10::str("file ", i, " checksum"))});
  }
  optimizers_ = loader_.Count("optimizers");
  extra_ = loader_.Bytes("extra");
  loader_.CheckThatNothingIsLeft();
  About([&] { here_.CheckHasAllOf(there_); });
}

const SavedPart& SavedParts::OfRank(int rank) {
  std::unique_ptr<SavedPart>& part = parts_[rank];
  if (!part) {
    part = std::make_unique<SavedPart>(PartFile(path_, save_, rank), save_, written_.at(rank));
  }
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
