// Lines of text for a terminal: headings, colour, wrapping.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/printable.h"
#include "report/format/layout.h"
#include "report/format/style.h"

namespace plimsoll {

class Writer {
 public:
  explicit Writer(const TextStyle& style) : style_(style) {}

  void Line(std::string_view text = "");
  void Heading(std::string_view text);
  /// Wraps at the terminal's width, after `first` on the first line and `further` on the others.
  void Wrapped(std::string_view text, std::string_view first, std::string_view further);
  /// One sentence that answers.
  void Headline(std::string_view text);
  /// A heading with an item a line; nothing where there are no items.
  void List(std::string_view heading, const std::vector<std::string>& items);
  /// Lines to type, whole however long they are.
  void Code(const std::vector<std::string>& lines, std::string_view indent);

  std::string Bold(std::string_view text) const { return Paint(text, "1"); }
  std::string Dim(std::string_view text) const { return Paint(text, "2"); }
  std::string Paint(std::string_view text, std::string_view code) const;
  std::string Take() { return std::move(out_); }
  int width() const { return style_.width; }

 private:
  TextStyle style_;
  std::string out_;
};

}  // namespace plimsoll
