#include "cli/command/shared_flags.h"

namespace plimsoll {
namespace {

/// Stores what was read, or hands on what is wrong with it.
template <typename T>
std::optional<Error> Store(Result<T> read, std::optional<T>& to) {
  if (!read) return read.error();
  to = std::move(*read);
  return std::nullopt;
}

Result<Bytes> ParseRoom(const std::string& text) {
  Result<Bytes> size = ParseBytes(text);
  if (!size || *size > 0) return size;
  return Error{.message = "'" + text + "' is no size above 0", .hint = "for example 22GiB"};
}

}  // namespace

void AddGpuFlag(Flags& flags, std::optional<Gpu>& to, const std::string& help) {
  flags.Value("--gpu", "GPU", help,
              [&to](const std::string& text) { return Store(FindGpu(text), to); });
}

void AddTorchFlag(Flags& flags, std::optional<TorchVersion>& to, const std::string& help) {
  flags.Value("--torch", "RELEASE", help,
              [&to](const std::string& text) { return Store(ParseKnownVersion(text), to); });
}

void AddRoomFlag(Flags& flags, const std::string& name, std::optional<Bytes>& to,
                 const std::string& help) {
  flags.Value(name, "SIZE", help,
              [&to](const std::string& text) { return Store(ParseRoom(text), to); });
}

void AddAllowUnknown(Flags& flags, bool& to) {
  flags.Switch("--allow-unknown", to,
               "exit code 0 instead of 3 if it is unknown whether the job fits");
}

}  // namespace plimsoll
