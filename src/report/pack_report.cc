#include <fmt/format.h>

#include "report/format/json_values.h"
#include "report/format/table.h"
#include "report/format/writer.h"
#include "report/json.h"
#include "report/text.h"

namespace plimsoll {
namespace {

std::string Verdict(const PackReport& r) {
  const Bytes height = r.result.packing.height;
  if (r.capacity) {
    switch (r.result.fits) {
      case Fits::kYes:
        return fmt::format("It fits into {}.", FormatBytes(*r.capacity));
      case Fits::kNot:
        return fmt::format("It does not fit into {}: at least {} are needed.",
                           FormatBytes(*r.capacity), FormatBytes(r.result.lower_bound));
      case Fits::kUnknown:
        return fmt::format(
            "Not settled in this time: {} are enough, less than {} cannot be; whether {} are "
            "enough is open.",
            FormatBytes(height), FormatBytes(r.result.lower_bound), FormatBytes(*r.capacity));
    }
  }
  if (r.result.optimal) return fmt::format("{} are enough, and the least.", FormatBytes(height));
  return fmt::format("{} are enough; less than {} cannot be.", FormatBytes(height),
                     FormatBytes(r.result.lower_bound));
}

}  // namespace

std::string PackText(const PackReport& r, const TextStyle& style) {
  Writer w(style);
  w.Headline(Verdict(r));
  const Bytes height = r.result.packing.height;
  const double over =
      r.most_alive > 0 ? 100.0 * double(height - r.most_alive) / double(r.most_alive) : 0.0;
  Table table({{}, {.right = true}, {.wraps = true}});
  table.Row({"buffers", fmt::format("{}", r.problem.buffers.size()), ""});
  table.Row({"alive at most", fmt::format("{}", r.most_alive), FormatBytes(r.most_alive)});
  table.Row({"height", fmt::format("{}", height),
             fmt::format("{} (+{:.2f} %)", FormatBytes(height), over)});
  table.WriteTo(w);
  for (const std::string& note : r.notes) w.Wrapped(note, "  - ", "    ");
  if (r.fault) w.Wrapped("the check found a fault: " + *r.fault, "  ", "    ");
  return w.Take();
}

std::string PackJson(const PackReport& r) {
  Json offsets = Json::array();
  for (std::size_t i = 0; i < r.ids.size(); ++i) {
    offsets.push_back({r.ids[i], r.result.packing.offsets[i]});
  }
  Json fits = nullptr;
  if (r.result.fits != Fits::kUnknown) fits = r.result.fits == Fits::kYes;
  const Json document = {{"schema", "plimsoll.pack/1"},
                         {"file", r.file},
                         {"buffers", r.ids.size()},
                         {"lower_bound", r.result.lower_bound},
                         {"most_alive", r.most_alive},
                         {"capacity", r.capacity ? Json(*r.capacity) : Json(nullptr)},
                         {"height", r.result.packing.height},
                         {"optimal", r.result.optimal},
                         {"fits", fits},
                         {"fault", OrNull(r.fault)},
                         {"notes", r.notes},
                         {"offsets", offsets}};
  return Dump(document, kOneLine);  // one line: there may be many offsets
}

}  // namespace plimsoll
