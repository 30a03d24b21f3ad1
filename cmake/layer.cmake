# isthmus_layer(compress SOURCES … HEADERS … USES isthmus::base isthmus::kernels LIBS zstd …)
#
# One static library per folder. CMake accepts link cycles between static libraries without a word, so USES refuses a
# layer that is not defined yet: with folders added bottom-up, a cycle cannot be configured. LIBS are third-party
# packages, private to the folder. Every header compiles alone: its .cc includes it first (tests/structure), and those
# without a .cc are compiled by the target all_verify_interface_header_sets.

# The one set of flags of all our code. No contraction anywhere: the arithmetic of outer state is specified to the
# rounding (README of kernels), and g++ fuses even intrinsics otherwise.
add_library(isthmus_flags INTERFACE)
target_compile_options(isthmus_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror -ffp-contract=off
                       # g++ 12 takes the two halves of a coroutine promise's operator new and delete for a mismatch
                       -Wno-mismatched-new-delete)

# Half of a compiler's time goes into reading the libraries' headers. Tests read them once for each target; builds of
# which nobody looks at whether a file includes what it uses (the sanitizers': release does) can do so for the layers.
option(ISTHMUS_PRECOMPILED_HEADERS "Precompile the headers of libraries that most files of the layers include" OFF)
function(isthmus_precompile target)
  target_precompile_headers(${target} PRIVATE ${ARGN}
    <fmt/format.h> <algorithm> <array> <chrono> <filesystem> <functional> <map> <memory> <optional> <set> <span> <string> <vector>)
endfunction()

function(isthmus_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "" "SOURCES;HEADERS;USES;LIBS;PUBLIC_LIBS")
  foreach(use IN LISTS layer_USES)
    if(NOT TARGET ${use})
      message(FATAL_ERROR "layer ${name} uses ${use}, which is not defined yet: layers may only use what lies below")
    endif()
  endforeach()
  add_library(isthmus_${name} STATIC ${layer_SOURCES})
  add_library(isthmus::${name} ALIAS isthmus_${name})
  set(without_source ${layer_HEADERS})
  foreach(source IN LISTS layer_SOURCES)
    string(REGEX REPLACE "\\.cc$" ".h" header ${source})
    list(REMOVE_ITEM without_source ${header})
  endforeach()
  set(with_source ${layer_HEADERS})
  list(REMOVE_ITEM with_source ${without_source})
  target_sources(isthmus_${name} PUBLIC
    FILE_SET with_source TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${with_source}
    FILE_SET without_source TYPE HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${without_source})
  target_link_libraries(isthmus_${name} PUBLIC ${layer_USES} ${layer_PUBLIC_LIBS} PRIVATE isthmus_flags ${layer_LIBS})
  set_target_properties(isthmus_${name} PROPERTIES
    VERIFY_INTERFACE_HEADER_SETS ON INTERFACE_HEADER_SETS_TO_VERIFY without_source)
  if(ISTHMUS_PRECOMPILED_HEADERS)
    isthmus_precompile(isthmus_${name})
  endif()
endfunction()

# isthmus_test(kernels adamw_test.cc … [USES isthmus::kernels] [LIBS …] [LABEL …] [TIMEOUT s])
# One test binary per folder, tests/<folder>; each case is a ctest test with the label LABEL, the folder's name if left out
# (gtest_discover_tests can give a test only one).
function(isthmus_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT;LABEL" "SOURCES;USES;LIBS")
  add_executable(${name}_test ${test_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${test_USES} isthmus_flags ${test_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name}_test PRIVATE ${ISTHMUS_TEST_FLAGS})
  isthmus_precompile(${name}_test <gtest/gtest.h> <gmock/gmock.h>)
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)
  endif()
  if(NOT test_LABEL)
    set(test_LABEL ${name})
  endif()
  gtest_discover_tests(${name}_test NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${test_TIMEOUT} LABELS ${test_LABEL})
endfunction()
