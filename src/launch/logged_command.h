// The command behind a log, as far as the log shows it: so that an answer can name the user's own
// script in what to type next.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

struct LoggedCommand {
  /// "python", "train.py", "--lr", "1e-4"; empty where the log shows none.
  std::vector<std::string> words = {};
  /// Its arguments stand in the log too; a traceback names the script alone.
  bool with_arguments = false;
  /// Which devices it was given: "CUDA_VISIBLE_DEVICES=1". Others are the shell's own matter.
  std::vector<std::string> variables = {};
};

/// From a launcher's complaint, a line that a shell echoed, or the traceback. Words that a shell
/// would read as anything but a word are never taken: whoever wrote the log does not decide what
/// is typed.
LoggedCommand CommandIn(std::string_view log);

/// The same of the end and the beginning of a file; nothing where it is no plain file.
LoggedCommand CommandOfLog(const std::string& path);

/// A command with "{batch}" in place of its batch size, where one of its words is plainly that, and
/// what stood there.
struct BatchPlace {
  std::vector<std::string> words;
  std::string batch = {};
};
BatchPlace WithBatchPlace(std::vector<std::string> words);

}  // namespace plimsoll
