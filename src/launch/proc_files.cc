#include "launch/proc_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>

namespace plimsoll {
namespace {

constexpr std::size_t kLongestProgram = 60;
/// As in python/plimsoll/recording/hook/plimsoll_history.py.
constexpr std::array<std::string_view, 7> kRankVariables = {
    "RANK=",      "SLURM_PROCID=", "OMPI_COMM_WORLD_RANK=",
    "PMIX_RANK=", "PMI_RANK=",     "MV2_COMM_WORLD_RANK=",
    "LOCAL_RANK="};

template <typename T>
std::optional<T> NumberAtStart(std::string_view text) {
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(" \t")));
  T number = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() ? std::optional(number) : std::nullopt;
}

/// What stands behind a key at the beginning of a line.
std::optional<std::string_view> LineAfter(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    if (line.starts_with(key)) return line.substr(key.size());
    at += line.size() + 1;
  }
  return std::nullopt;
}

std::string_view LastPartOf(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos || slash + 1 == path.size() ? path
                                                                     : path.substr(slash + 1);
}

}  // namespace

std::optional<std::string> ReadKernelFile(const std::string& path, std::size_t most) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  std::string text(most, '\0');
  std::size_t size = 0;
  while (size < most) {
    const ssize_t part = ::read(file, text.data() + size, most - size);
    if (part < 0 && errno == EINTR) continue;
    if (part < 0 && size == 0) {
      ::close(file);
      return std::nullopt;
    }
    if (part <= 0) break;
    size += static_cast<std::size_t>(part);
  }
  ::close(file);
  text.resize(size);
  return text;
}

std::optional<ProcStat> ParseStat(std::string_view text) {
  // "812 (a name (of any kind)) S 800 …": the name ends at the last parenthesis.
  const std::size_t open = text.find('(');
  const std::size_t close = text.rfind(')');
  if (open == text.npos || close == text.npos || close < open) return std::nullopt;
  ProcStat stat{.name = std::string(text.substr(open + 1, close - open - 1))};
  std::string_view rest = text.substr(close + 1);
  // The third field of the file is the first of these.
  for (int field = 3; field <= 52; ++field) {
    rest.remove_prefix(std::min(rest.size(), rest.find_first_not_of(' ')));
    const std::string_view word = rest.substr(0, rest.find_first_of(" \n"));
    if (word.empty()) return field > 22 ? std::optional(stat) : std::nullopt;
    if (field == 3) stat.state = word.front();
    if (field == 4) stat.parent = NumberAtStart<std::int64_t>(word).value_or(0);
    if (field == 22) stat.started = NumberAtStart<std::int64_t>(word).value_or(0);
    if (field == 52) stat.status = NumberAtStart<int>(word).value_or(0);
    rest.remove_prefix(word.size());
  }
  return stat;
}

std::optional<Bytes> KilobytesAfter(std::string_view text, std::string_view key) {
  const std::optional<std::string_view> line = LineAfter(text, key);
  const auto number = line ? NumberAtStart<Bytes>(*line) : std::nullopt;
  if (!number || *number < 0 || *number > (Bytes{1} << 40)) return std::nullopt;
  return *number * kKiB;
}

std::optional<std::int64_t> CountAfter(std::string_view text, std::string_view word) {
  const std::optional<std::string_view> line = LineAfter(text, fmt::format("{} ", word));
  return line ? NumberAtStart<std::int64_t>(*line) : std::nullopt;
}

ProcStatus ParseStatus(std::string_view text) {
  ProcStatus status{.resident = KilobytesAfter(text, "VmRSS:").value_or(0),
                    .shared = KilobytesAfter(text, "RssShmem:").value_or(0)};
  if (const auto name = LineAfter(text, "Name:")) {
    status.name = name->substr(std::min(name->size(), name->find_first_not_of(" \t")));
  }
  return status;
}

std::vector<std::string_view> NulSeparated(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find('\0'));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

std::optional<int> RankInEnvironment(std::string_view environment) {
  const std::vector<std::string_view> variables = NulSeparated(environment);
  for (const std::string_view name : kRankVariables) {
    for (const std::string_view variable : variables) {
      if (!variable.starts_with(name)) continue;
      const std::string_view value = variable.substr(name.size());
      const bool digits = !value.empty() && value.size() <= 6 &&
                          value.find_first_not_of("0123456789") == value.npos;
      if (digits) return NumberAtStart<int>(value);
    }
  }
  return std::nullopt;
}

std::string ProgramIn(std::string_view words) {
  const std::vector<std::string_view> all = NulSeparated(words);
  if (all.empty()) return "";
  std::string name(LastPartOf(all[0]));
  // The rest can hold passwords; of an interpreter the script, or the module, is what it runs.
  if (name.starts_with("python")) {
    std::size_t i = 1;
    while (i < all.size() && all[i].starts_with('-') && all[i] != "-m" && all[i] != "-c") {
      i += all[i] == "-W" || all[i] == "-X" ? 2 : 1;  // these take a word
    }
    if (i < all.size() && all[i] == "-m" && i + 1 < all.size()) {
      name += fmt::format(" -m {}", all[i + 1]);
    } else if (i < all.size() && !all[i].starts_with('-')) {
      name += fmt::format(" {}", LastPartOf(all[i]));
    }
  }
  return name.substr(0, kLongestProgram);
}

}  // namespace plimsoll
