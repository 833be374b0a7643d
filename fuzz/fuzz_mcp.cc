// Lines of the Model Context Protocol, through a server with one tool.
#include <string_view>

#include "cli/mcp/server.h"
#include "fuzz.h"

namespace plimsoll {
namespace {

mcp::Server ServerWithATool() {
  mcp::Tool tool{.name = "explain",
                 .title = "Explain",
                 .description = "Explains.",
                 .arguments = {{"files", mcp::ArgumentKind::kTexts, "files", true},
                               {"at", mcp::ArgumentKind::kWhole, "an event"},
                               {"group", mcp::ArgumentKind::kText, "a pattern"},
                               {"json", mcp::ArgumentKind::kSwitch, "a switch"}},
                 .call = [](const Json& arguments) {
                   // What is handed on has the types that were asked for.
                   for (const Json& file : arguments["files"].items()) {
                     PLIMSOLL_CHECK(file.is_text());
                   }
                   PLIMSOLL_CHECK(!arguments["files"].empty());
                   return mcp::ToolAnswer{.summary = "fine", .document = arguments};
                 }};
  return mcp::Server({tool}, "1.0");
}

}  // namespace
}  // namespace plimsoll

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  plimsoll::mcp::Server server = plimsoll::ServerWithATool();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::optional<std::string> answer = server.Answer(line);
    if (!answer) continue;
    // One line, and JSON.
    PLIMSOLL_CHECK(answer->find('\n') == std::string::npos);
    const plimsoll::Json json = plimsoll::ParseOwnJson(*answer);
    PLIMSOLL_CHECK(json.is_object() || json.is_array());
  }
  return 0;
}
