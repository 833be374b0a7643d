// The flags that `replay` and `tune` share.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "diagnose/what_if.h"

namespace plimsoll {

struct WhatIfFlags {
  std::string file;
  std::optional<std::string> conf;
  std::optional<std::string> capacity;
  std::optional<std::string> limit;
  std::optional<std::string> torch;
  std::optional<int> device;
  bool json = false;

  void AddTo(CLI::App& app);
  /// The flags as values, or the first one that makes no sense.
  Result<WhatIfOptions> Parse() const;
};

}  // namespace plimsoll
