// The flags that `replay` and `tune` share.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/command/flags.h"
#include "diagnose/what_if.h"
#include "hardware/gpu.h"

namespace plimsoll {

struct WhatIfFlags {
  std::string file;
  std::optional<std::string> conf;
  std::optional<Bytes> capacity;
  std::optional<Gpu> gpu;
  std::optional<Bytes> limit;
  std::optional<TorchVersion> torch;
  std::optional<std::int64_t> device;
  bool json = false;

  void AddTo(Flags& flags);
  /// One `--set`; several make one string.
  std::optional<Error> AddSettings(const std::string& text);
  /// The flags that say how much memory there is, as they are typed.
  std::vector<std::string> LimitWords() const;
  /// The flags as options, or what does not go together.
  Result<WhatIfOptions> Options() const;
};

}  // namespace plimsoll
