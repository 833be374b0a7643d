#include "launch/scratch.h"

#include <stdlib.h>

namespace plimsoll {

Scratch::Scratch() {
  std::error_code failed;
  std::string name = (std::filesystem::temp_directory_path(failed) / "plimsoll-XXXXXX").string();
  if (!failed && ::mkdtemp(name.data()) != nullptr) path_ = name;
}

Scratch::~Scratch() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace plimsoll
