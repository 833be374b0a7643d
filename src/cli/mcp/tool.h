// What a server of the Model Context Protocol offers: functions with typed arguments.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "files/json.h"

namespace plimsoll::mcp {

enum class ArgumentKind : std::uint8_t { kText, kTexts, kWhole, kSwitch };

struct Argument {
  std::string name;
  ArgumentKind kind = ArgumentKind::kText;
  std::string help;
  bool required = false;
};

struct ToolAnswer {
  /// What is said of it in a sentence.
  std::string summary;
  /// The document; null where there is none.
  Json document = {};
  /// What could not be used, in a line.
  std::string complaint = {};
  /// Where the document comes from: the command that gives the same.
  std::string command = {};
  int exit_code = 0;
};

struct Tool {
  std::string name;
  std::string title;
  std::string description;
  std::vector<Argument> arguments;
  /// It starts a program of the user's.
  bool runs_scripts = false;
  /// With arguments that have been checked against the above.
  std::function<ToolAnswer(const Json& arguments)> call;
};

/// As `tools/list` has it.
Json Describe(const Tool& tool);

/// Why these arguments are none of the tool's.
std::optional<Error> CheckArguments(const Tool& tool, const Json& arguments);

}  // namespace plimsoll::mcp
