#include <map>
#include <memory>
#include <string>

#include "cli/command/command.h"
#include "cli/report_pipeline.h"

namespace plimsoll {
namespace {

struct ReportFlags {
  ReportRequest request;
  std::string format = "html";
};

ReportFormat FormatNamed(const std::string& name) {
  static const std::map<std::string, ReportFormat> kFormats = {
      {"html", ReportFormat::kPage},
      {"perfetto", ReportFormat::kPerfetto},
      {"speedscope", ReportFormat::kSpeedscope},
      {"csv", ReportFormat::kCsv}};
  return kFormats.at(name);
}

}  // namespace

Command AddReport(Flags& declare) {
  auto flags = std::make_shared<ReportFlags>();
  ReportRequest& request = flags->request;
  declare.Arguments(
      "FILE", request.files,
      "whatever explain reads, or the folder that plimsoll run left; several files are "
      "the ranks of one job");
  declare.Texts("--compare", "BASE", request.baseline,
                "another run to compare with, such as the one before a change; again for each "
                "rank");
  declare.Text("-o,--output", "OUT", request.out,
               "where to write; - is standard output. report.html unless given, standard output "
               "for other formats");
  declare.Choice("--format", "F", flags->format, {"html", "perfetto", "speedscope", "csv"},
                 "html, or perfetto (ui.perfetto.dev), speedscope (speedscope.app), csv");
  declare.Count("--at", "EVENT", request.at,
                "the event whose stacks speedscope gets, not the out-of-memory or the peak");
  declare.Switch("--redact", request.redact, "replace the names of your own files");
  declare.Examples(
      "  plimsoll report snapshot.pickle -o report.html   one file that opens anywhere, offline\n"
      "  plimsoll report rank*.pickle -o ranks.html       all ranks, the odd one marked\n"
      "  plimsoll report now.pickle --compare before.pickle   both runs on one scale\n"
      "  plimsoll report snapshot.pickle --redact         to show to others\n"
      "  plimsoll report snapshot.pickle --format perfetto -o trace.json   to look at elsewhere");
  return [flags] {
    flags->request.format = FormatNamed(flags->format);
    return MakeReport(flags->request);
  };
}

}  // namespace plimsoll
