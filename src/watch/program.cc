#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <vector>

#include "watch/watcher.h"

namespace plimsoll {
namespace {

constexpr std::size_t kLongestProgram = 60;

std::string_view LastPart(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string_view::npos || slash + 1 == path.size() ? path
                                                                     : path.substr(slash + 1);
}

}  // namespace

std::string ProgramIn(std::string_view words) {
  std::vector<std::string_view> all;
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find('\0'));
    words.remove_prefix(std::min(words.size(), word.size() + 1));
    if (!word.empty()) all.push_back(word);
  }
  if (all.empty()) return "";
  std::string name(LastPart(all[0]));
  // The rest can hold passwords; of an interpreter the script, or the module, is what it runs.
  if (name.starts_with("python")) {
    std::size_t i = 1;
    while (i < all.size() && all[i].starts_with('-') && all[i] != "-m" && all[i] != "-c") {
      i += all[i] == "-W" || all[i] == "-X" ? 2 : 1;  // these take a word
    }
    if (i < all.size() && all[i] == "-m" && i + 1 < all.size()) {
      name += fmt::format(" -m {}", all[i + 1]);
    } else if (i < all.size() && !all[i].starts_with('-')) {
      name += fmt::format(" {}", LastPart(all[i]));
    }
  }
  return name.substr(0, kLongestProgram);
}

std::string ProgramOf(std::int64_t pid) {
  const int file =
      ::open(fmt::format("/proc/{}/cmdline", pid).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return "";
  std::string words(4096, '\0');
  const ssize_t size = ::read(file, words.data(), words.size());
  ::close(file);
  words.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return ProgramIn(words);
}

}  // namespace plimsoll
