#include "cli/calibration_flag.h"

#include <fmt/format.h>

#include <utility>

#include "hardware/context.h"

namespace plimsoll {

Result<Measured> ReadMeasured(const std::optional<std::string>& flag, Gpu& gpu) {
  if (!flag) return Measured{.operators = Calibration::BuiltIn(gpu.name)};
  if (*flag == "none" || *flag == kRulesAlone) return Measured{};
  const Result<Input> input = Input::Open(*flag);
  if (!input) return input.error();
  Result<Calibration> read = Calibration::Read(*input);
  if (!read) return read.error();
  if (read->gpu() != gpu.name) {
    return Error{.message = fmt::format("it was measured on {}, not on {}", read->gpu(), gpu.name),
                 .file = *flag,
                 .hint = "give the --gpu that it is for"};
  }
  if (read->context()) {
    SetMeasuredContext(gpu, read->context()->bare, read->context()->training);
  }
  Measured measured{.host = read->host().value_or(HostModel{})};
  // With context or host alone, operators are what they were without it.
  const bool other = read->context() || read->host();
  measured.operators = other && read->size() == 0
                           ? Calibration::BuiltIn(gpu.name)
                           : std::make_shared<const Calibration>(std::move(*read));
  return measured;
}

}  // namespace plimsoll
