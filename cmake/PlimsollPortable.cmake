# PLIMSOLL_PORTABLE: archives before shared libraries. Where a library has no archive the shared one is taken, and
# tools/check_portable tells.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a ${CMAKE_FIND_LIBRARY_SUFFIXES})
# What a build folder found before this was asked for.
foreach(library ZLIB_LIBRARY_RELEASE LIBLZMA_LIBRARY_RELEASE PLIMSOLL_ZSTD_LIBRARY SQLite3_LIBRARY)
  if("${${library}}" MATCHES "[.]so$")
    unset(${library} CACHE)
  endif()
endforeach()
