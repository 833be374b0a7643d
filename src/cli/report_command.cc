#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/report_pipeline.h"

namespace plimsoll {

Command AddReport(CLI::App& app) {
  static const std::map<std::string, ReportFormat> kFormats = {
      {"html", ReportFormat::kPage},
      {"perfetto", ReportFormat::kPerfetto},
      {"speedscope", ReportFormat::kSpeedscope},
      {"csv", ReportFormat::kCsv}};
  auto request = std::make_shared<ReportRequest>();
  app.add_option("FILE", request->files,
                 "whatever explain reads; several files are the ranks of one job")
      ->required();
  app.add_option(
         "--compare", request->baseline,
         "another run to compare with, such as the one before a change; again for each rank")
      ->type_name("BASE")
      ->allow_extra_args(false);
  app.add_option("-o,--output", request->out,
                 "where to write; - is standard output. report.html unless given, standard output "
                 "for other formats")
      ->type_name("OUT");
  app.add_option_function<std::string>(
         "--format", [request](const std::string& name) { request->format = kFormats.at(name); },
         "html, or perfetto (ui.perfetto.dev), speedscope (speedscope.app), csv")
      ->type_name("F")
      ->check(CLI::IsMember({"html", "perfetto", "speedscope", "csv"}));
  app.add_option("--at", request->at,
                 "the event whose stacks speedscope gets, not the out-of-memory or the peak")
      ->type_name("EVENT")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--redact", request->redact, "replace the names of your own files");
  app.footer(
      "Examples:\n"
      "  plimsoll report snapshot.pickle -o report.html   one file that opens anywhere, offline\n"
      "  plimsoll report rank*.pickle -o ranks.html       all ranks, the odd one marked\n"
      "  plimsoll report now.pickle --compare before.pickle   both runs on one scale\n"
      "  plimsoll report snapshot.pickle --redact         to show to others\n"
      "  plimsoll report snapshot.pickle --format perfetto -o trace.json");
  return [request] { return MakeReport(*request); };
}

}  // namespace plimsoll
