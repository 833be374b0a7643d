// A folder among temporary files, gone with the object.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace plimsoll {

class Scratch {
 public:
  Scratch();
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  bool ok() const { return !path_.empty(); }
  std::string path() const { return path_.string(); }
  std::string File(std::string_view name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace plimsoll
