# One CMake target per layer. tools/check_layers enforces the same table on #include lines.

add_library(plimsoll_options INTERFACE)
target_compile_options(plimsoll_options INTERFACE -Wall -Wextra -Wshadow -Wconversion
                       -Wno-sign-conversion
                       # The same figures on every processor: no multiply-add where the text says two operations.
                       -ffp-contract=off
                       # Designated initializers leave the other members at their defaults.
                       -Wno-missing-field-initializers
                       # g++ 12 and 13 warn of members of the C++ library: of concatenation (GCC bug 105651),
                       # and where replace() or an inlined copy is followed to the end.
                       $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>
                       $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-stringop-overflow>
                       $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-stringop-overread>
                       $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,14>>:-Wno-array-bounds>)
if(PLIMSOLL_UNITY)
  # g++ takes what a batch includes for headers, which must not use unnamed namespaces.
  target_compile_options(plimsoll_options INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  # By itself g++ looks for garbage at every few hundred megabytes, which is a tenth of the time of a batch. Without, it
  # takes up to a third more memory: 1.6 GB at most, and 3.8 GB with torch.
  target_compile_options(plimsoll_options INTERFACE
                         $<$<CXX_COMPILER_ID:GNU>:SHELL:--param ggc-min-heapsize=4000000>)
endif()
if(PLIMSOLL_WERROR)
  target_compile_options(plimsoll_options INTERFACE -Werror)
endif()
if(PLIMSOLL_SANITIZE)
  target_compile_options(plimsoll_options INTERFACE -fsanitize=${PLIMSOLL_SANITIZE}
                         -fno-sanitize-recover=all -fno-omit-frame-pointer
                         # What the checks put in between hides from g++ that a variant's member was set.
                         $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_link_options(plimsoll_options INTERFACE -fsanitize=${PLIMSOLL_SANITIZE})
endif()
if(PLIMSOLL_FUZZ)
  # Coverage instrumentation everywhere; only the fuzz targets link the fuzzer's main().
  target_compile_options(plimsoll_options INTERFACE -fsanitize=fuzzer-no-link)
endif()
target_include_directories(plimsoll_options INTERFACE ${CMAKE_SOURCE_DIR}/src)

# plimsoll_read_once(TARGET KIND HEADERS...): what nearly every file of it reads is compiled once, for all targets that have
# the same: a precompiled header for each would take as long as a fifth of the rest. It belongs to the first of them,
# whose options the others share: targets with other options are of another KIND.
function(plimsoll_read_once target kind)
  string(MAKE_C_IDENTIFIER "plimsoll_${kind}_reads_${ARGN}" readers)
  get_property(first GLOBAL PROPERTY ${readers})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    target_precompile_headers(${target} PRIVATE ${ARGN})
    set_property(GLOBAL PROPERTY ${readers} ${target})
  endif()
endfunction()

# plimsoll_quick_to_compile(TEST HEADERS...): nearly half of the time that continuous integration takes goes into
# compiling tests. What they test is optimised, they need not be; gtest and HEADERS are read once.
function(plimsoll_quick_to_compile test)
  target_compile_definitions(${test} PRIVATE PLIMSOLL_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")
  if(PLIMSOLL_SANITIZE OR PLIMSOLL_UNITY)
    target_compile_options(${test} PRIVATE -O0)
  endif()
  plimsoll_read_once(${test} test <gtest/gtest.h> ${ARGN})
endfunction()

# plimsoll_in_batches(FILES TARGETS...): so many files at a time where PLIMSOLL_UNITY is on, which takes a third of the time:
# what each file costs is mostly what it includes. A change then compiles its whole batch, so the preset dev has it off.
# Files of one layer must not have the same names in their anonymous namespaces.
function(plimsoll_in_batches files)
  if(PLIMSOLL_UNITY)
    set_target_properties(${ARGN} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endif()
endfunction()

# plimsoll_layer(NAME [RECURSE] [OPTIMISE] LINK LIBRARIES...): a static library of every .cc in this folder (RECURSE: and
# below it), and a unit test binary of every *_test.cc beside them. OPTIMISE: where a second of the program's time goes,
# compiling longer is worth it. The others are sentences and flags, and -Og compiles them in half the time of -O2.
function(plimsoll_layer name)
  cmake_parse_arguments(ARG "RECURSE;OPTIMISE" "" "LINK" ${ARGN})
  if(ARG_RECURSE)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  else()
    file(GLOB sources CONFIGURE_DEPENDS *.cc)
  endif()
  # main() stands alone, so that tests can link the rest.
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  set(tests ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  add_library(plimsoll_${name} STATIC ${sources})
  target_link_libraries(plimsoll_${name} PUBLIC $<BUILD_INTERFACE:plimsoll_options> ${ARG_LINK})
  # Beside CMAKE_CXX_STANDARD, which does not go with an installed library.
  target_compile_features(plimsoll_${name} PUBLIC cxx_std_20)
  # Not one file alone: g++ 13 dies of its unnamed namespace then.
  list(LENGTH sources files)
  if(files GREATER 1)
    plimsoll_in_batches(80 plimsoll_${name})
  endif()
  set(kind layer)
  if(ARG_OPTIMISE AND PLIMSOLL_OPTIMISE)
    target_compile_options(plimsoll_${name} PRIVATE ${PLIMSOLL_OPTIMISE})
    set(kind optimised)
  endif()
  plimsoll_read_once(plimsoll_${name} ${kind} <fmt/format.h> <algorithm> <array> <deque> <functional> <map> <memory>
                     <optional> <set> <span> <string> <string_view> <unordered_map> <utility> <variant> <vector>)
  # Where only the training library is built, its own tests are enough.
  if(PLIMSOLL_TESTS AND PLIMSOLL_PROGRAM AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE plimsoll_${name} GTest::gtest_main)
    plimsoll_quick_to_compile(${name}_test)
    plimsoll_in_batches(80 ${name}_test)
    add_test(NAME unit.${name} COMMAND ${name}_test)
  endif()
endfunction()

# plimsoll_embed(LAYER FILE FUNCTION): `std::string FUNCTION()` in the layer gives the file's bytes,
# `std::string FUNCTIONSha256()` their hash.
function(plimsoll_embed layer file function)
  set(source ${CMAKE_CURRENT_BINARY_DIR}/${function}.cc)
  add_custom_command(
    OUTPUT ${source}
    COMMAND ${CMAKE_COMMAND} -DFILE=${file} -DFUNCTION=${function} -DOUT=${source}
            -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${file} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake)
  target_sources(plimsoll_${layer} PRIVATE ${source})
endfunction()
