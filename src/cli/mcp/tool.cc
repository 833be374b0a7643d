#include "cli/mcp/tool.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.h"

namespace plimsoll::mcp {
namespace {

/// More than anybody has, and few enough to be handed on.
constexpr std::size_t kMostItems = 4096;

Json SchemaOf(const Argument& argument) {
  Json schema = Json::object();
  switch (argument.kind) {
    case ArgumentKind::kText:
      schema["type"] = "string";
      break;
    case ArgumentKind::kTexts:
      schema["type"] = "array";
      schema["items"] = {{"type", "string"}};
      if (argument.required) schema["minItems"] = 1;
      break;
    case ArgumentKind::kWhole:
      schema["type"] = "integer";
      schema["minimum"] = 0;
      break;
    case ArgumentKind::kSwitch:
      schema["type"] = "boolean";
      break;
  }
  schema["description"] = argument.help;
  return schema;
}

bool Fits(const Json& value, ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kText:
      return value.is_text();
    case ArgumentKind::kTexts:
      return value.is_array() && value.size() <= kMostItems &&
             std::ranges::all_of(value.items(), [](const Json& item) { return item.is_text(); });
    case ArgumentKind::kWhole:
      return value.whole().has_value();
    case ArgumentKind::kSwitch:
      return value.boolean().has_value();
  }
  return false;
}

std::string_view KindWords(ArgumentKind kind) {
  switch (kind) {
    case ArgumentKind::kText:
      return "a string";
    case ArgumentKind::kTexts:
      return "a list of strings";
    case ArgumentKind::kWhole:
      return "a whole number from 0 on";
    case ArgumentKind::kSwitch:
      return "true or false";
  }
  return "";
}

}  // namespace

Json Describe(const Tool& tool) {
  Json properties = Json::object();
  Json required = Json::array();
  for (const Argument& argument : tool.arguments) {
    properties[argument.name] = SchemaOf(argument);
    if (argument.required) required.push_back(argument.name);
  }
  Json input = Json::object();
  input["type"] = "object";
  input["properties"] = std::move(properties);
  if (!required.empty()) input["required"] = std::move(required);
  input["additionalProperties"] = false;
  Json output = Json::object();
  output["type"] = "object";
  output["properties"] = {{"schema", {{"type", "string"}}}};
  output["required"] = std::vector<std::string>{"schema"};
  Json annotations = Json::object();
  annotations["title"] = tool.title;
  annotations["readOnlyHint"] = !tool.runs_scripts;
  annotations["openWorldHint"] = tool.runs_scripts;
  if (!tool.runs_scripts) annotations["idempotentHint"] = true;
  Json json = Json::object();
  json["name"] = tool.name;
  json["title"] = tool.title;
  json["description"] = tool.description;
  json["inputSchema"] = std::move(input);
  json["outputSchema"] = std::move(output);
  json["annotations"] = std::move(annotations);
  return json;
}

std::optional<Error> CheckArguments(const Tool& tool, const Json& arguments) {
  if (!arguments.is_object()) return Error{.message = "arguments must be an object"};
  for (const auto& [name, value] : arguments.members()) {
    const auto known = std::ranges::find(tool.arguments, name, &Argument::name);
    if (known == tool.arguments.end()) {
      return Error{.message = fmt::format("{} takes no argument '{}'", tool.name,
                                          Printable(name.substr(0, 80)))};
    }
    if (!Fits(value, known->kind)) {
      return Error{
          .message = fmt::format("'{}' of {} must be {}", name, tool.name, KindWords(known->kind))};
    }
  }
  for (const Argument& argument : tool.arguments) {
    const Json& value = arguments[argument.name];
    const bool given = argument.kind == ArgumentKind::kTexts ? !value.empty() : !value.is_null();
    if (argument.required && !given) {
      return Error{.message = fmt::format("{} needs '{}'", tool.name, argument.name)};
    }
  }
  return std::nullopt;
}

}  // namespace plimsoll::mcp
