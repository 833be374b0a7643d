// How a command declares its flags, and what help, completion and suggestions know of them.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/result.h"

namespace plimsoll {

struct FlagInfo {
  std::vector<std::string> names;  // "-o", "--output"
  std::string type = {};           // "SIZE"; empty where it takes no value
  std::string help = {};
  std::vector<std::string> choices = {};
};

struct ArgumentInfo {
  std::string name;
  std::string help = {};
  bool required = true;
  bool many = false;
};

/// A command line to type, and what it is for.
struct Example {
  std::string line;
  std::string purpose = {};
};

struct CommandInfo {
  std::string name;
  std::string what;
  std::vector<ArgumentInfo> arguments = {};
  std::vector<FlagInfo> flags = {};
  std::vector<Example> examples = {};
  /// Sentences below the examples.
  std::vector<std::string> remarks = {};
};

class Flags {
 public:
  /// Takes a flag's value, and says what is wrong with it.
  using Reader = std::function<std::optional<Error>(const std::string&)>;

  Flags(std::string name, std::string what);

  // Each binds a variable, which must outlive the parsing.

  void Argument(const std::string& name, std::string& to, const std::string& help);
  void Arguments(const std::string& name, std::vector<std::string>& to, const std::string& help,
                 bool required = true);
  /// A command of the user's: all words after "--", as they are. It must be there, or, where
  /// `only_with` names a switch, is one if that is given.
  void CommandLine(const std::string& name, std::vector<std::string>& to, const std::string& help,
                   const std::string& only_with = {});
  void Switch(const std::string& name, bool& to, const std::string& help);
  void Text(const std::string& name, const std::string& type, std::optional<std::string>& to,
            const std::string& help);
  /// May be given again; each time one more.
  void Texts(const std::string& name, const std::string& type, std::vector<std::string>& to,
             const std::string& help);
  /// A size with its unit.
  void Size(const std::string& name, std::optional<Bytes>& to, const std::string& help);
  void Count(const std::string& name, const std::string& type, std::optional<std::int64_t>& to,
             const std::string& help, std::int64_t least = 0,
             std::int64_t most = std::numeric_limits<std::int64_t>::max());
  /// A time of at most a million seconds.
  void Seconds(const std::string& name, double& to, const std::string& help);
  void Choice(const std::string& name, const std::string& type, std::string& to,
              std::vector<std::string> choices, const std::string& help);
  /// Whatever `read` takes.
  void Value(const std::string& name, const std::string& type, const std::string& help,
             Reader read);
  /// The same, and it may be given again.
  void Repeated(const std::string& name, const std::string& type, const std::string& help,
                Reader read);
  /// Lines "  plimsoll explain FILE   what for"; any other line is a remark.
  void Examples(const std::string& text);

  CommandInfo Describe() const;
  /// Reads what follows the command's name.
  std::optional<Error> Parse(std::vector<std::string> words);

 private:
  struct Declared {
    Reader read;
    bool again = false;  // may be given more than once
    bool given = false;
  };
  /// A word that looks like a flag, taken apart: "--format=html", "-ofile".
  struct Word {
    std::optional<std::size_t> flag = {};  // none where it is unknown
    std::string name;
    std::optional<std::string> value = {};
  };

  std::string SeeHelp() const;
  Declared& Declare(const std::string& names, const std::string& type, const std::string& help,
                    Reader read);
  Word Apart(const std::string& word) const;
  std::optional<Error> FindUnknown(const std::vector<std::string>& words) const;
  std::optional<Error> TakeCommandLine(std::vector<std::string>& words);
  std::optional<Error> TakeFlag(const std::vector<std::string>& words, std::size_t& at);
  std::optional<Error> TakeArgument(const std::string& word);

  CommandInfo info_;
  std::vector<Declared> declared_ = {};                               // as info_.flags
  std::vector<std::function<void(std::string)>> take_argument_ = {};  // as info_.arguments
  std::size_t arguments_taken_ = 0;
  bool some_taken_ = false;  // of the one that takes many
  std::vector<std::string>* command_line_ = nullptr;
  std::string command_line_switch_ = {};
  ArgumentInfo command_line_info_ = {};
};

}  // namespace plimsoll
