// Runs a fuzz target over the files of its corpus, so that an ordinary test run covers what the
// fuzzers once found: replay TARGET FOLDER…
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <vector>

#include "fuzz_targets.inc"

namespace {

struct Target {
  std::string_view name;
  int (*run)(const std::uint8_t*, std::size_t);
};

constexpr Target kTargets[] = {
#define TARGET(name) {#name, Fuzz_##name},
#include "fuzz_names.inc"
#undef TARGET
};

const Target* TargetNamed(std::string_view name) {
  for (const Target& target : kTargets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const Target* const target = argc > 1 ? TargetNamed(argv[1]) : nullptr;
  if (target == nullptr) {
    std::fprintf(stderr, "usage: replay TARGET FOLDER...\n");
    return 2;
  }
  std::size_t files = 0;
  for (int i = 2; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<char> bytes((std::istreambuf_iterator<char>(in)),
                                    std::istreambuf_iterator<char>());
      // On a crash the last line printed names the file.
      std::printf("%s\n", entry.path().c_str());
      std::fflush(stdout);
      target->run(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++files;
    }
  }
  std::printf("%zu files\n", files);
  return files == 0 ? 1 : 0;
}
