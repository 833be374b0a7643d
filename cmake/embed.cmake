# cmake -DFILE=... -DFUNCTION=... -DOUT=... -P embed.cmake: writes a C++ file that holds the bytes
# and their SHA-256 in hexadecimal digits.
file(READ ${FILE} hex HEX)
file(SHA256 ${FILE} hash)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
file(WRITE ${OUT} "#include <string>

namespace plimsoll {

std::string ${FUNCTION}() {
  static constexpr unsigned char kBytes[] = {
${bytes}};
  return {reinterpret_cast<const char*>(kBytes), sizeof(kBytes)};
}

std::string ${FUNCTION}Sha256() { return \"${hash}\"; }

}  // namespace plimsoll
")
