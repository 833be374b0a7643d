// Links where fmt_archive.cc has what this release of fmt leaves to its library.
#include <fmt/format.h>

#include <cstdio>
#include <locale>

int main(int count, char** words) {
  const std::string text = fmt::format("{} {:>9.2f} {}", words[0], count / 3.0, count / 3.0F);
  fmt::print("{} {:L} {}\n", text, 1234567, fmt::join(text, ","));
  try {
    return fmt::format(fmt::runtime(text), count).empty() ? 1 : 0;
  } catch (const fmt::format_error&) {
    return 0;
  }
}
