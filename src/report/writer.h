// Lines of text for a terminal: headings, colour, wrapping.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "base/printable.h"
#include "report/text.h"

namespace plimsoll {

class Writer {
 public:
  explicit Writer(const TextStyle& style) : style_(style) {}

  void Line(std::string_view text = "") {
    out_ += text;
    out_ += '\n';
  }
  void Heading(std::string_view text) {
    Line();
    Line(Bold(text));
  }
  /// Wraps at the terminal's width, each further line indented.
  void Wrapped(std::string_view raw, std::string_view first, std::string_view further) {
    const std::string clean = Printable(raw);
    std::string_view text = clean;
    std::string line(first);
    std::size_t used = first.size();
    bool empty = true;
    while (!text.empty()) {
      const std::size_t space = text.find(' ');
      const std::string_view word = text.substr(0, space);
      text.remove_prefix(space == std::string_view::npos ? text.size() : space + 1);
      if (!empty && used + 1 + word.size() > static_cast<std::size_t>(style_.width)) {
        Line(line);
        line = further;
        used = further.size();
        empty = true;
      }
      if (!empty) {
        line += ' ';
        ++used;
      }
      line += word;
      used += word.size();
      empty = false;
    }
    Line(line);
  }
  /// One sentence that answers; wrapped before it is painted.
  void Headline(std::string_view text) {
    Writer plain(TextStyle{.colour = false, .width = style_.width});
    plain.Wrapped(text, "", "");
    std::string lines = plain.Take();
    if (!lines.empty()) lines.pop_back();
    Line(Bold(lines));
  }
  std::string Bold(std::string_view text) const { return Paint(text, "1"); }
  std::string Dim(std::string_view text) const { return Paint(text, "2"); }
  std::string Paint(std::string_view text, std::string_view code) const {
    if (!style_.colour) return std::string(text);
    return fmt::format("\033[{}m{}\033[0m", code, text);
  }
  std::string Take() { return std::move(out_); }
  int width() const { return style_.width; }

 private:
  TextStyle style_;
  std::string out_;
};

}  // namespace plimsoll
