# Run by cmake --install: "train/trainer/trainer.h" becomes "plimsoll/train/trainer/trainer.h" in the installed headers, so that a
# project with a folder train or base of its own cannot come between them.
file(GLOB_RECURSE headers "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/include/plimsoll/*.h")
foreach(header IN LISTS headers)
  file(READ "${header}" text)
  string(REGEX REPLACE "(#include \")((base|files|recompute|train)/)" "\\1plimsoll/\\2" text "${text}")
  file(WRITE "${header}" "${text}")
endforeach()
