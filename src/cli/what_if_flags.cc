#include "cli/what_if_flags.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

Result<std::optional<Bytes>> ParseSize(const char* flag, const std::optional<std::string>& text) {
  if (!text) return std::optional<Bytes>();
  Result<Bytes> size = ParseBytes(*text);
  if (!size || *size <= 0) {
    return Error{.message = fmt::format("{} takes a size above 0, not '{}'", flag, *text),
                 .hint = "for example 22GiB"};
  }
  return std::optional<Bytes>(*size);
}

}  // namespace

void WhatIfFlags::AddTo(CLI::App& app) {
  app.add_option("FILE", file, "a memory snapshot; - is standard input")->required();
  app.add_option("--capacity", capacity,
                 "what the driver can give to PyTorch: the card less all else on it (22GiB)")
      ->type_name("SIZE");
  app.add_option(
         "--limit", limit,
         "what set_per_process_memory_fraction allows, in bytes (20GiB); garbage collection "
         "measures against it")
      ->type_name("SIZE");
  app.add_option("--torch", torch, "the rules of another release (2.15)")->type_name("RELEASE");
  app.add_option("--device", device, "the device, where the snapshot has several")->type_name("N");
  app.add_flag("--json", json, "one JSON document (docs/json.md)");
}

Result<WhatIfOptions> WhatIfFlags::Parse() const {
  WhatIfOptions options{.device = device, .conf = conf};
  const auto size_of_capacity = ParseSize("--capacity", capacity);
  if (!size_of_capacity) return size_of_capacity.error();
  options.capacity = *size_of_capacity;
  const auto size_of_limit = ParseSize("--limit", limit);
  if (!size_of_limit) return size_of_limit.error();
  options.limit = *size_of_limit;
  if (torch) {
    options.torch = ParseTorchVersion(*torch);
    if (!options.torch) {
      return Error{.message = fmt::format("'{}' is no release of PyTorch", *torch),
                   .hint = "write it as 2.11"};
    }
  }
  return options;
}

}  // namespace plimsoll
