#include "report/next_step.h"

#include "report/format/writer.h"

namespace plimsoll {

std::string NextText(const std::vector<NextStep>& steps, const TextStyle& style) {
  if (steps.empty()) return "";
  Writer w(style);
  w.Heading("Next");
  for (const NextStep& step : steps) {
    w.Code({step.command}, "  ");
    w.Code(step.further_lines, "  ");
    w.Wrapped(step.purpose, "      ", "      ");
  }
  return w.Take();
}

}  // namespace plimsoll
