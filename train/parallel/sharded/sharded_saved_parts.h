// The files of a sharded save, and how one rank reads from them what it needs.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "train/parallel/sharded/saved_in_parts.h"
#include "train/parallel/sharded/sharded_layout.h"

namespace plimsoll::train {

/// A save of any number of ranks, as a rank of another layout sees it. A file is opened when
/// something of it is asked for.
class SavedParts {
 public:
  SavedParts(const std::filesystem::path& path, ShardedLayout here, int rank);

  const std::string& extra() const { return extra_; }
  std::int64_t optimizers() const { return optimizers_; }
  bool same_layout() const { return here_ == there_; }
  const SavedPart& OfRank(int rank);
  std::int64_t SavedPartSize(std::size_t group) const { return there_.PartSize(group); }

  /// The ranks, and their groups, that have something for this rank's part of a group. Where that
  /// has no element of any parameter, one of them all the same.
  std::set<std::pair<int, std::size_t>> SourcesOf(std::size_t group) const;
  /// This rank's part of a group, put together from tensors with an element for each one of a part.
  at::Tensor Joined(std::size_t group, at::ScalarType type,
                    const std::function<at::Tensor(int rank, std::size_t group)>& tensor) const;

  /// Names the file at the path.
  [[noreturn]] void Fail(const std::string& what) const { loader_.Fail(what); }

 private:
  std::vector<ShardedLayout::Run> RunsOf(std::size_t group) const;
  /// Its error is about the file at the path.
  void About(const std::function<void()>& function) const;

  ShardedLayout here_;
  int rank_;
  StateLoader loader_;
  PartsList files_;
  ShardedLayout there_;
  std::int64_t optimizers_ = 0;
  std::string extra_;
  std::map<int, std::unique_ptr<SavedPart>> parts_;
};

}  // namespace plimsoll::train
