# A .deb and a .tar.gz of the program; tools/make_archives has cpack make them.
# What is not installed need not be built for it.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_PACKAGE_NAME plimsoll)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tells why a training job ran out of GPU memory")
set(CPACK_PACKAGE_CONTACT "the authors of plimsoll")
set(CPACK_PACKAGE_FILE_NAME plimsoll-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
# The program alone: the training library is installed from source, for the LibTorch that is there.
set(CPACK_COMPONENTS_ALL plimsoll)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_ARCHIVE_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "plimsoll explain train.log is where to begin. It needs no GPU and no Python.")
include(CPack)
