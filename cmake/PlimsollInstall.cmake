# What people install: the program, its manual pages, shell completion and the licences of what is linked into it.
# One component, "plimsoll", for make install, the .deb (cmake/PlimsollPackage.cmake) and the wheel (pyproject.toml).
set(bin bin)
set(share share)
if(SKBUILD)
  # A wheel has places of its own for these; pip puts them into bin and share of the environment.
  set(bin ${SKBUILD_SCRIPTS_DIR})
  set(share ${SKBUILD_DATA_DIR}/share)
endif()

if(PLIMSOLL_PREBUILT)
  set(program ${PLIMSOLL_PREBUILT})
  install(PROGRAMS ${program} DESTINATION ${bin} RENAME plimsoll COMPONENT plimsoll)
else()
  set(program $<TARGET_FILE:plimsoll>)
  install(TARGETS plimsoll RUNTIME DESTINATION ${bin} COMPONENT plimsoll)
endif()

# The program writes its own pages, so that they say what its flags say.
set(made ${CMAKE_CURRENT_BINARY_DIR}/share)
set(PLIMSOLL_NOTICES /usr/share/doc CACHE PATH "Where <package>/copyright of the libraries lies, as on Debian")
if(NOT CMAKE_CROSSCOMPILING)
  add_custom_command(
    OUTPUT ${made}/written
    COMMAND ${CMAKE_COMMAND} -DPROGRAM=${program} -DNOTICES=${PLIMSOLL_NOTICES} -DOUT=${made}
            -P ${CMAKE_SOURCE_DIR}/cmake/write_share.cmake
    COMMAND ${CMAKE_COMMAND} -E touch ${made}/written
    DEPENDS ${program} ${CMAKE_SOURCE_DIR}/cmake/write_share.cmake)
  add_custom_target(plimsoll_share ALL DEPENDS ${made}/written)
  install(DIRECTORY ${made}/ DESTINATION ${share} COMPONENT plimsoll PATTERN written EXCLUDE)
endif()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${share}/doc/plimsoll COMPONENT plimsoll)
# For agents: how to go from a dead run to an edit that is verified (docs/agents.md).
install(FILES ${CMAKE_SOURCE_DIR}/agents/plimsoll/SKILL.md DESTINATION ${share}/plimsoll/skill/plimsoll COMPONENT plimsoll)
