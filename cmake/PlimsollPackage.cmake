# cpack -G DEB in a build folder; make deb does it.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME plimsoll)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "tells why a training job ran out of GPU memory")
set(CPACK_PACKAGE_CONTACT "the authors of plimsoll")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
# The program alone: the training library is installed from source, for the LibTorch that is there.
set(CPACK_COMPONENTS_ALL plimsoll)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PLIMSOLL_PACKAGE_NAME plimsoll)
set(CPACK_DEBIAN_PLIMSOLL_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION utils)
# From what the program links: libc6 alone where PLIMSOLL_PORTABLE is on.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
include(CPack)
