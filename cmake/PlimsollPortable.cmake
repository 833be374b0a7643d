# PLIMSOLL_PORTABLE: archives before shared libraries. Where a library has no archive the shared one is taken, and
# tools/check_portable tells.
set(CMAKE_FIND_LIBRARY_SUFFIXES .a ${CMAKE_FIND_LIBRARY_SUFFIXES})
# What a build folder found before this was asked for.
foreach(library ZLIB_LIBRARY_RELEASE LIBLZMA_LIBRARY_RELEASE PLIMSOLL_ZSTD_LIBRARY PLIMSOLL_RE2_LIBRARY SQLite3_LIBRARY)
  if("${${library}}" MATCHES "[.]so$")
    unset(${library} CACHE)
  endif()
endforeach()

# plimsoll_choose_fmt(NAME): which target to link, one that brings no shared library.
function(plimsoll_choose_fmt name)
  get_target_property(type fmt::fmt TYPE)
  if(NOT type STREQUAL SHARED_LIBRARY)
    return()
  endif()
  set(source ${CMAKE_SOURCE_DIR}/cmake/fmt_archive.cc)
  get_target_property(include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  try_compile(PLIMSOLL_FMT_ARCHIVE ${CMAKE_BINARY_DIR}/fmt_archive
              SOURCES ${source} ${CMAKE_SOURCE_DIR}/cmake/fmt_archive_check.cc
              CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${include}" CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  if(NOT PLIMSOLL_FMT_ARCHIVE)
    message(STATUS "fmt as an archive does not link; compiled into every file instead")
    set(${name} fmt::fmt-header-only PARENT_SCOPE)
    return()
  endif()
  add_library(plimsoll_fmt STATIC ${source})
  target_include_directories(plimsoll_fmt SYSTEM PUBLIC ${include})
  # Formatting is never what takes long, and -O3 takes twice as long to compile it.
  target_compile_options(plimsoll_fmt PRIVATE -O1)
  set(${name} plimsoll_fmt PARENT_SCOPE)
endfunction()
