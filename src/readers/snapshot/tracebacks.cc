#include "readers/snapshot/tracebacks.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "readers/snapshot/tables.h"
#include "timeline/limits.h"

namespace plimsoll::snapshot {
namespace {

/// Splits `File "model.py", line 12, in forward` out of a traceback's text; false if there is none.
/// On success `text` is advanced past it.
bool NextTracebackLine(std::string_view& text, std::string_view& file, int& line,
                       std::string_view& function) {
  while (true) {
    const std::size_t at = text.find("File \"");
    if (at == std::string_view::npos) return false;
    text.remove_prefix(at + 6);
    const std::size_t quote = text.find('"');
    if (quote == std::string_view::npos) return false;
    file = text.substr(0, quote);
    text.remove_prefix(quote + 1);
    if (!text.starts_with(", line ")) continue;
    text.remove_prefix(7);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), line);
    if (error != std::errc()) continue;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    function = "";
    if (text.starts_with(", in ")) {
      text.remove_prefix(5);
      function = text.substr(0, text.find_first_of("\r\n"));
      text.remove_prefix(function.size());
    }
    return true;
  }
}

}  // namespace

std::span<const FrameId> Tracebacks::FramesOf(StringId text) {
  if (!text.valid()) return {};
  const auto [found, is_new] = known_.try_emplace(text.value);
  auto& [first, count] = found->second;
  if (is_new) {
    first = frames_.size();
    std::string_view rest = strings_[text];
    std::string_view file;
    std::string_view function;
    int line = 0;
    while (NextTracebackLine(rest, file, line, function)) {
      const Frame frame{.function = words_.Add(function), .file = words_.Add(file), .line = line};
      AddRow(budget_, frames_, stacks_.AddFrame(frame));
    }
    count = frames_.size() - first;
  }
  return std::span(frames_).subspan(first, count);
}

StackId Tracebacks::StackOf(std::span<const StringId> texts) {
  // A traceback lists the innermost call last, a stack first.
  std::vector<FrameId> frames;
  for (auto text = texts.rbegin(); text != texts.rend() && frames.size() < kDeepestStack; ++text) {
    const std::span<const FrameId> lines = FramesOf(*text);
    const auto some = lines.last(std::min(lines.size(), kDeepestStack - frames.size()));
    frames.insert(frames.end(), some.rbegin(), some.rend());
  }
  return stacks_.AddStack(frames);
}

}  // namespace plimsoll::snapshot
