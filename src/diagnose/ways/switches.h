// How each framework has a way typed: a row each, in its own form (a key of its YAML, a flag, an
// argument of its configuration class). docs/frameworks.md is made of these rows.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "diagnose/ways/torch_ways.h"

namespace plimsoll {

struct Switch {
  TorchWay way;
  /// Lines, separated by line ends. {batch} and {steps}: half of the batch, and as many more
  /// passes.
  std::string_view code;
  /// The file in which the switch was seen, in the framework's own repository unless it begins with
  /// "owner/name:".
  std::string_view source;
  /// The release or the month from which on it has this name, where older ones are still in use.
  std::string_view since = {};
  /// In the place of the way's own words.
  std::string_view change = {};
  std::optional<std::string_view> costs = {};
};

/// Of kOwnLoop: none.
std::span<const Switch> SwitchesOf(Framework framework);

/// "huggingface/trl"; the snapshot of it in which the switches were seen.
struct FrameworkSource {
  std::string_view repository;
  std::string_view commit;
  std::string_view month;
};
FrameworkSource SourceOf(Framework framework);

// One file for each kind of framework.
std::span<const Switch> SwitchesOfTrainers(Framework framework);
std::span<const Switch> SwitchesOfRecipes(Framework framework);
std::span<const Switch> SwitchesOfEngines(Framework framework);

}  // namespace plimsoll
