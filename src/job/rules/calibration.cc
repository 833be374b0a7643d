#include "job/rules/calibration.h"

#include <fmt/format.h>

#include <utility>

#include "files/encode.h"
#include "files/json.h"
#include "job/rules/calibration_data.h"

namespace plimsoll {
namespace {

constexpr std::string_view kCalibrationSchema = "plimsoll.calibration/2";
constexpr std::string_view kChecksum = "crc32 ";

/// Up to the next line end, which is taken out.
std::string_view NextLine(std::string_view& text) {
  const std::size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

/// No card has more for a context.
constexpr Bytes kLargestContext = 64 * kGiB;

/// Two sizes, the second no less than the first; nothing where it is anything else.
std::optional<MeasuredContext> ReadContext(const Json& json) {
  const Bytes bare = json["bare"].integer().value_or(0);
  const Bytes training = json["training"].integer().value_or(0);
  if (bare <= 0 || training < bare || training > kLargestContext) return std::nullopt;
  return MeasuredContext{bare, training};
}

/// Nobody's Python takes longer for a call, or for a step besides its calls.
constexpr double kLongestUs = 1e6;

/// Microseconds by name, each of them there; nothing where it is anything else.
std::optional<HostModel> ReadHost(const Json& json) {
  HostModel host;
  host.measured = true;
  const std::pair<std::string_view, double*> fields[] = {
      {"forward", &host.forward},       {"backward", &host.backward}, {"list", &host.list},
      {"entry", &host.entry},           {"loop", &host.loop},         {"step", &host.step},
      {"checkpoint", &host.checkpoint}, {"saved", &host.saved}};
  for (const auto& [name, field] : fields) {
    const std::optional<double> us = json[name].number();
    if (!us || *us < 0 || *us > kLongestUs) return std::nullopt;
    *field = *us;
  }
  return host;
}

/// The text without its last line, if that has the checksum of the others.
std::optional<std::string_view> Checked(std::string_view text) {
  const std::size_t last = text.rfind(kChecksum);
  if (last == std::string_view::npos || last == 0 || text[last - 1] != '\n') return std::nullopt;
  const std::string expected = fmt::format("{}{:08x}\n", kChecksum, Crc32(text.substr(0, last)));
  if (text.substr(last) != expected) return std::nullopt;
  return text.substr(0, last);
}

}  // namespace

Result<Calibration> Calibration::Read(const Input& input) {
  Error error{.message = "this is not a calibration file",
              .file = input.name(),
              .hint = "make it with plimsoll.calibrate in Python: docs/calibrate.md"};
  Calibration calibration;
  const auto held = std::make_shared<const std::string>(input.bytes());
  const std::string_view text = *held;
  std::string_view rest = text;
  ReadBudget budget(input);
  const Result<Json> read = ReadJson(NextLine(rest), budget);
  if (!read || (*read)["schema"] != kCalibrationSchema) return error;
  const Json& header = *read;
  const std::optional<std::string_view> checked = Checked(text);
  error.message = "the calibration file is damaged";
  error.hint = "copy it again, or make it anew with plimsoll.calibrate in Python";
  if (!checked) return error;
  std::optional<WorkspaceTable::Lists> batches = WorkspaceTable::ReadBatches(header["batches"]);
  if (!batches || !header["gpu"].is_text()) return error;
  calibration.gpu_ = *header["gpu"].text();
  if (!header["context"].is_null()) {
    calibration.context_ = ReadContext(header["context"]);
    if (!calibration.context_) return error;
  }
  if (!header["host"].is_null()) {
    calibration.host_ = ReadHost(header["host"]);
    if (!calibration.host_) return error;
  }
  calibration.table_ = WorkspaceTable(held, std::move(*batches));
  rest.remove_suffix(text.size() - checked->size());
  while (!rest.empty()) {
    const std::string_view line = NextLine(rest);
    if (line.starts_with("time ") || calibration.table_.Add(line)) continue;
    error.offset = static_cast<std::uint64_t>(line.data() - text.data());
    return error;
  }
  return calibration;
}

std::shared_ptr<const Calibration> Calibration::BuiltIn(std::string_view gpu) {
  static const std::shared_ptr<const Calibration> h200 = []() -> std::shared_ptr<Calibration> {
    const Result<Input> input = Input::FromMemory("the built-in calibration", CalibrationBytes());
    if (!input) return nullptr;
    Result<Calibration> read = Calibration::Read(*input);
    return read ? std::make_shared<Calibration>(std::move(*read)) : nullptr;
  }();
  return h200 && h200->gpu_ == gpu ? h200 : nullptr;
}

}  // namespace plimsoll
