// `--run -- python train.py --batch-size {batch}`: a step that is captured from a script on the
// spot, in place of a step file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/flags.h"

namespace plimsoll {

struct ScriptFlags {
  bool run = false;
  std::vector<std::string> command;
  std::optional<std::string> keep;

  void AddTo(Flags& flags);
};

/// The step file of a script: the one to keep, or one that goes with the object.
class CapturedStep {
 public:
  /// Runs the script on nothing, for a minute or so.
  static Result<CapturedStep> Of(const ScriptFlags& flags,
                                 std::optional<std::pair<std::int64_t, std::int64_t>> batches,
                                 const std::string& gpu);
  CapturedStep(CapturedStep&& other) noexcept;
  CapturedStep& operator=(CapturedStep&&) = delete;
  ~CapturedStep();

  const std::string& path() const { return path_; }

 private:
  CapturedStep(std::string path, bool kept) : path_(std::move(path)), kept_(kept) {}

  std::string path_;
  bool kept_ = false;
};

/// Says what is missing or too much: a step comes from files or from a script.
std::optional<Error> CheckSource(const ScriptFlags& flags, const std::vector<std::string>& files);

/// Two numbers with a comma between them: "8,16".
std::optional<Error> ReadBatches(const std::string& text,
                                 std::optional<std::pair<std::int64_t, std::int64_t>>& to);

}  // namespace plimsoll
