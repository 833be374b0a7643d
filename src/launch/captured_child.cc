#include "launch/captured_child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

extern char** environ;

namespace plimsoll {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
/// A file without a name: what is written to two pipes would have to be read from both at once.
using Nameless = std::unique_ptr<std::FILE, CloseFile>;

std::string TextOf(std::FILE* file) {
  std::string text;
  std::rewind(file);
  std::array<char, 65536> piece{};
  for (std::size_t size = 0; (size = std::fread(piece.data(), 1, piece.size(), file)) > 0;) {
    text.append(piece.data(), size);
  }
  return text;
}

std::vector<std::string> EnvironmentWith(const std::vector<Variable>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const auto is_it = [&](const Variable& variable) { return variable.name == name; };
    if (!std::ranges::any_of(more, is_it)) all.emplace_back(text);
  }
  for (const Variable& variable : more) {
    if (!variable.value.empty()) all.push_back(variable.name + "=" + variable.value);
  }
  return all;
}

std::vector<char*> PointersTo(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

CapturedChild RunCaptured(const std::vector<std::string>& command,
                          const std::vector<Variable>& more) {
  const Nameless out(std::tmpfile());
  const Nameless err(std::tmpfile());
  if (!out || !err) {
    return {.end = {.code = 126,
                    .refused = Error{.message = "no temporary file can be made",
                                     .hint = "name a folder that can be written in TMPDIR"}}};
  }
  std::vector<std::string> words = command;
  std::vector<std::string> environment = EnvironmentWith(more);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(out.get()), STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, ::fileno(err.get()), STDERR_FILENO);
  // In a group of its own: Ctrl-C is for this process, which lets such a short command end.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  pid_t child = 0;
  const int reason = ::posix_spawnp(&child, words.front().c_str(), &actions, &attributes,
                                    PointersTo(words).data(), PointersTo(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (reason != 0) {
    return {
        .end = {.code = reason == ENOENT ? 127 : 126,
                .refused = Error{.message = fmt::format("'{}' cannot be run: {}", command.front(),
                                                        std::strerror(reason))}}};
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) break;
  }
  CapturedChild captured;
  captured.end.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (WIFSIGNALED(status)) captured.end.signal = WTERMSIG(status);
  captured.output = TextOf(out.get());
  captured.complaint = TextOf(err.get());
  return captured;
}

}  // namespace plimsoll
