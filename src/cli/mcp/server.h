// The Model Context Protocol: JSON-RPC 2.0, one message a line. What comes in is a stranger's: each
// message has a largest size and depth, and none ends the server.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/mcp/tool.h"

namespace plimsoll::mcp {

/// A line that is longer is refused unread.
inline constexpr std::size_t kLongestMessage = std::size_t{4} << 20;

class Server {
 public:
  Server(std::vector<Tool> tools, std::string version)
      : tools_(std::move(tools)), version_(std::move(version)) {}

  /// One line without its end; what to answer, as a line without its end, if anything.
  std::optional<std::string> Answer(std::string_view line);
  /// The answer to a line that was too long to be read.
  static std::string TooLong();

 private:
  std::optional<Json> OnMessage(const Json& message);
  std::optional<Json> OnBatch(const Json& messages);
  Json OnRequest(const std::string& method, const Json& params, const Json& id);
  Json Initialize(const Json& params, const Json& id);
  Json ListTools(const Json& params, const Json& id) const;
  Json CallTool(const Json& params, const Json& id) const;
  Json ResultOf(const Tool& tool, const ToolAnswer& answer) const;

  std::vector<Tool> tools_;
  std::string version_;
  /// Of the protocol, once it is agreed upon.
  std::string protocol_;
};

}  // namespace plimsoll::mcp
