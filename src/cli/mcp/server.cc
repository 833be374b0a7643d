#include "cli/mcp/server.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <new>

#include "base/printable.h"

namespace plimsoll::mcp {
namespace {

/// The newest first, which is offered to whoever asks for one that we do not know.
constexpr auto kProtocols =
    std::to_array<std::string_view>({"2025-06-18", "2025-03-26", "2024-11-05"});
/// The first that has results with a structure.
constexpr std::string_view kStructured = "2025-06-18";

// Codes of JSON-RPC.
constexpr int kParseError = -32700;
constexpr int kInvalidRequest = -32600;
constexpr int kNoSuchMethod = -32601;
constexpr int kInvalidParams = -32602;

constexpr std::string_view kInstructions =
    "Plimsoll tells why a PyTorch job ran out of GPU memory, and predicts what it will need. Begin "
    "with `identify` where you do not know what a file is. `explain` takes memory snapshots, logs, "
    "profiler traces and folders of `plimsoll run`; `explain_log` a log or the text of an error. "
    "`predict` and `plan` take captured steps (*.step.json.gz) or hf:config.json. Every result is "
    "the document that the same command prints with --json (docs/json.md); its figures are bytes.";

Json Envelope(const Json& id) {
  Json json = Json::object();
  json["jsonrpc"] = "2.0";
  json["id"] = id;
  return json;
}

Json Success(const Json& id, Json result) {
  Json json = Envelope(id);
  json["result"] = std::move(result);
  return json;
}

Json Failure(const Json& id, int code, std::string message) {
  Json json = Envelope(id);
  json["error"] = {{"code", code}, {"message", std::move(message)}};
  return json;
}

/// MCP allows no null here.
bool IsId(const Json& id) { return id.is_text() || IsInteger(id); }

Json TextBlock(std::string text) {
  Json block = Json::object();
  block["type"] = "text";
  block["text"] = std::move(text);
  return block;
}

}  // namespace

std::string Server::TooLong() {
  return WriteJson(Failure({}, kParseError,
                           fmt::format("the message is longer than {} bytes", kLongestMessage)));
}

std::optional<std::string> Server::Answer(std::string_view line) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return std::nullopt;
  ReadBudget budget(InputSize{.stored = line.size(), .unpacked = line.size()});
  const Result<Json> message = ReadJson(line, budget);
  if (!message) {
    return WriteJson(Failure({}, kParseError, Printable(message.error().ToLine())));
  }
  const std::optional<Json> answer = message->is_array() ? OnBatch(*message) : OnMessage(*message);
  return answer ? std::optional(WriteJson(*answer)) : std::nullopt;
}

/// Several messages at once, which one version of the protocol has.
std::optional<Json> Server::OnBatch(const Json& messages) {
  constexpr std::size_t kMostAtOnce = 64;
  if (protocol_ == kStructured || messages.empty() || messages.size() > kMostAtOnce) {
    return Failure({}, kInvalidRequest, "a list of messages is not taken here");
  }
  Json answers = Json::array();
  for (const Json& message : messages.items()) {
    if (std::optional<Json> answer = OnMessage(message)) answers.push_back(std::move(*answer));
  }
  return answers.empty() ? std::nullopt : std::optional(std::move(answers));
}

std::optional<Json> Server::OnMessage(const Json& message) {
  if (!message.is_object() || TextOr(message["jsonrpc"], "") != "2.0") {
    const Json id = IsId(message["id"]) ? message["id"] : Json();
    return Failure(id, kInvalidRequest, "this is no message of JSON-RPC 2.0");
  }
  const bool has_id = message.contains("id");
  if (!message.contains("method")) {
    // An answer, and we never ask.
    if (message.contains("result") || message.contains("error")) return std::nullopt;
    return Failure(IsId(message["id"]) ? message["id"] : Json(), kInvalidRequest,
                   "the message has no method");
  }
  const std::string* const method = message["method"].text();
  if (method == nullptr || (has_id && !IsId(message["id"]))) {
    return Failure(IsId(message["id"]) ? message["id"] : Json(), kInvalidRequest,
                   method == nullptr ? "the method must be a string"
                                     : "the id must be a string or an integer");
  }
  // Whatever it is, nobody waits for an answer. Calls are over before the next message is read, so
  // that there is nothing to cancel.
  if (!has_id) return std::nullopt;
  const Json& params = message["params"];
  if (message.contains("params") && !params.is_object()) {
    return Failure(message["id"], kInvalidParams, "params must be an object");
  }
  return OnRequest(*method, params, message["id"]);
}

Json Server::OnRequest(const std::string& method, const Json& params, const Json& id) {
  if (method == "ping") return Success(id, Json::object());
  if (method == "initialize") return Initialize(params, id);
  if (protocol_.empty()) {
    return Failure(id, kInvalidRequest, "initialize has to come first");
  }
  if (method == "tools/list") return ListTools(params, id);
  if (method == "tools/call") return CallTool(params, id);
  return Failure(id, kNoSuchMethod,
                 fmt::format("there is no method '{}'", Printable(method.substr(0, 80))));
}

Json Server::Initialize(const Json& params, const Json& id) {
  const std::string* const asked = params["protocolVersion"].text();
  if (asked == nullptr) {
    return Failure(id, kInvalidParams, "initialize needs a protocolVersion");
  }
  if (!protocol_.empty()) return Failure(id, kInvalidRequest, "it is initialized already");
  const bool known = std::ranges::find(kProtocols, *asked) != kProtocols.end();
  protocol_ = known ? *asked : std::string(kProtocols.front());
  Json result = Json::object();
  result["protocolVersion"] = protocol_;
  Json tools = Json::object();
  tools["listChanged"] = false;
  result["capabilities"]["tools"] = std::move(tools);
  result["serverInfo"] = {{"name", "plimsoll"}, {"title", "Plimsoll"}, {"version", version_}};
  result["instructions"] = kInstructions;
  return Success(id, std::move(result));
}

Json Server::ListTools(const Json& params, const Json& id) const {
  // There is one page, so that no cursor can be ours.
  if (params.contains("cursor")) return Failure(id, kInvalidParams, "there is no such cursor");
  Json list = Json::array();
  for (const Tool& tool : tools_) {
    Json described = Describe(tool);
    list.push_back(std::move(described));
  }
  Json result = Json::object();
  result["tools"] = std::move(list);
  return Success(id, std::move(result));
}

Json Server::CallTool(const Json& params, const Json& id) const {
  const std::string* const name = params["name"].text();
  if (name == nullptr) return Failure(id, kInvalidParams, "the name of a tool is missing");
  const auto tool = std::ranges::find(tools_, *name, &Tool::name);
  if (tool == tools_.end()) {
    return Failure(id, kInvalidParams,
                   fmt::format("unknown tool: {}", Printable(name->substr(0, 80))));
  }
  const Json arguments = params.contains("arguments") ? params["arguments"] : Json::object();
  if (const std::optional<Error> wrong = CheckArguments(*tool, arguments)) {
    return Failure(id, kInvalidParams, Printable(wrong->ToLine()));
  }
  ToolAnswer answer;
  try {
    answer = tool->call(arguments);
  } catch (const std::bad_alloc&) {
    answer = {.complaint = "there is not enough memory for this", .exit_code = 2};
  }
  return Success(id, ResultOf(*tool, answer));
}

Json Server::ResultOf(const Tool&, const ToolAnswer& answer) const {
  Json content = Json::array();
  if (!answer.summary.empty()) content.push_back(TextBlock(answer.summary));
  if (!answer.complaint.empty()) content.push_back(TextBlock(answer.complaint));
  const bool document = answer.document.is_object();
  // For whoever reads texts alone.
  if (document) content.push_back(TextBlock(WriteJson(answer.document)));
  if (content.empty()) content.push_back(TextBlock("there is no answer"));
  Json result = Json::object();
  result["content"] = std::move(content);
  if (document && protocol_ >= kStructured) result["structuredContent"] = answer.document;
  result["isError"] = !document;
  Json meta = Json::object();
  if (!answer.command.empty()) meta["plimsoll/command"] = answer.command;
  meta["plimsoll/exit_code"] = answer.exit_code;
  result["_meta"] = std::move(meta);
  return result;
}

}  // namespace plimsoll::mcp
