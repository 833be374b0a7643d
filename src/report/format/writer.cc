#include "report/format/writer.h"

#include <fmt/format.h>

#include <algorithm>

namespace plimsoll {
namespace {

/// Where indents leave less than this, lines rather become too long than one word high.
constexpr std::size_t kLeastRoom = 20;

std::size_t RoomIn(int width, std::string_view indent) {
  const std::size_t used = VisibleWidth(indent);
  const auto all = static_cast<std::size_t>(width);
  return std::max(all > used ? all - used : 0, kLeastRoom);
}

}  // namespace

void Writer::Line(std::string_view text) {
  out_ += text;
  out_ += '\n';
}

void Writer::Heading(std::string_view text) {
  Line();
  Headline(text);
}

void Writer::Wrapped(std::string_view text, std::string_view first, std::string_view further) {
  const std::size_t room = std::min(RoomIn(style_.width, first), RoomIn(style_.width, further));
  bool begun = false;
  for (const std::string& line : WrapText(Printable(text), room)) {
    Line(std::string(begun ? further : first) + line);
    begun = true;
  }
}

void Writer::Headline(std::string_view text) {
  for (const std::string& line : WrapText(Printable(text), RoomIn(style_.width, ""))) {
    Line(Bold(line));
  }
}

void Writer::List(std::string_view heading, const std::vector<std::string>& items) {
  if (items.empty()) return;
  Heading(heading);
  for (const std::string& item : items) Wrapped(item, "  - ", "    ");
}

void Writer::Code(const std::vector<std::string>& lines, std::string_view indent) {
  for (const std::string& line : lines) Line(std::string(indent) + Printable(line));
}

std::string Writer::Paint(std::string_view text, std::string_view code) const {
  if (!style_.colour) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace plimsoll
