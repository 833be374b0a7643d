# The target plimsoll::zstd. zstd has a CMake package only where it was built with CMake, and its targets are named
# otherwise in each release. Installed with the training library, so that each machine finds its own.
include(FindPackageHandleStandardArgs)
find_library(PLIMSOLL_ZSTD_LIBRARY zstd)
find_path(PLIMSOLL_ZSTD_INCLUDE zstd.h)
mark_as_advanced(PLIMSOLL_ZSTD_LIBRARY PLIMSOLL_ZSTD_INCLUDE)
find_package_handle_standard_args(PlimsollZstd REQUIRED_VARS PLIMSOLL_ZSTD_LIBRARY PLIMSOLL_ZSTD_INCLUDE
                                  REASON_FAILURE_MESSAGE "install libzstd-dev (Debian, Ubuntu) or zstd")
if(PlimsollZstd_FOUND AND NOT TARGET plimsoll::zstd)
  add_library(plimsoll::zstd UNKNOWN IMPORTED)
  set_target_properties(plimsoll::zstd PROPERTIES IMPORTED_LOCATION "${PLIMSOLL_ZSTD_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${PLIMSOLL_ZSTD_INCLUDE}")
endif()
