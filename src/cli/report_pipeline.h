// The flow of `plimsoll report`: files in, one page or export out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace plimsoll {

enum class ReportFormat : std::uint8_t { kPage, kPerfetto, kSpeedscope, kCsv };

struct ReportRequest {
  std::vector<std::string> files;
  /// Of the folders among them, what ended their processes; filled by MakeReport.
  std::vector<std::string> error_texts = {};
  /// Files of another run to compare with; a page only.
  std::vector<std::string> baseline;
  ReportFormat format = ReportFormat::kPage;
  /// "-" is standard output. Unless given, report.html for a page, standard output for exports.
  std::optional<std::string> out;
  /// The event whose stacks speedscope gets; the out-of-memory or the peak unless given.
  std::optional<std::int64_t> at;
  bool redact = false;
};

/// Returns the exit code; what cannot be used has been complained of.
int MakeReport(const ReportRequest& request);

}  // namespace plimsoll
