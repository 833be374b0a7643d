// A save of several files: ranks write a part each, so that no process needs all of it, and it
// counts when all are on disk. docs/parallel.md has the layout.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "train/parallel/ranks/ranks.h"
#include "train/saving/state_tensors.h"

namespace plimsoll::train {

/// The name of the save, in each of its files.
inline constexpr const char* kSaveInParts = "sharded save";

struct WrittenPart {
  std::int64_t bytes = 0;
  std::int64_t checksum = 0;
};

/// All ranks call it, with a path that leads to the same place on all. There are `parts` parts, and
/// this rank writes number `own`, or none. The parts go to the folder PATH.parts; the file at
/// `path`, which rank 0 writes and which names them, replaces the last one when all are on disk. So
/// whoever is killed, whenever, the last save that was complete is there. Throws c10::Error on all
/// ranks if one could not write.
void SaveInParts(const std::filesystem::path& path, Ranks& ranks, int parts, std::optional<int> own,
                 const std::function<void(StateSaver&)>& add_part,
                 const std::function<void(StateSaver&)>& add_to_main);

/// One part of a save. Errors name its file.
class SavedPart {
 public:
  /// Throws c10::Error if it is not the file that was written.
  SavedPart(const std::filesystem::path& file, const std::string& save, const WrittenPart& written);

  const StateFile& state() const { return state_; }
  bool HasTensor(const std::string& name) const { return state_.tensors.contains(name); }
  /// Over the bytes of the file, while this lives: to be read, not written.
  at::Tensor Tensor(const std::string& name) const;
  const StateValue& Value(const std::string& name) const;
  [[noreturn]] void Fail(const std::string& what) const;

 private:
  std::string name_;
  /// Behind a pointer: the tensors of the state lie in it.
  std::unique_ptr<const Input> input_;
  StateFile state_;
};

/// What a file at `path` says of the parts that belong to it.
class PartsList {
 public:
  /// Of the loader of that file.
  PartsList(const std::filesystem::path& path, StateLoader& loader);
  /// That there are so many.
  void Take(StateLoader& loader, int parts);

  SavedPart Open(int part) const;
  /// The same, checked, as a state of its own.
  StateLoader Load(int part) const;

 private:
  std::filesystem::path path_;
  std::string save_;
  std::vector<WrittenPart> written_;
};

}  // namespace plimsoll::train
