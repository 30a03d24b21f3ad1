# isthmus_layer(compress SOURCES … HEADERS … USES isthmus::base isthmus::kernels LIBS zstd …)
#
# One static library per folder. CMake accepts link cycles between static libraries without a word, so USES refuses a
# layer that is not defined yet: with folders added bottom-up, a cycle cannot be configured. LIBS are third-party
# packages, private to the folder; FLAGS are its own. ALONE names, by a regular expression, files that share no unit with
# others. Every header compiles alone: its .cc includes it first (tests/structure), and those without a .cc are compiled
# by the target all_verify_interface_header_sets.

# The one set of flags of all our code. No contraction anywhere: the arithmetic of outer state is specified to the
# rounding (README of kernels), and g++ fuses even intrinsics otherwise.
add_library(isthmus_flags INTERFACE)
target_compile_options(isthmus_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Werror -ffp-contract=off
                       # g++ 12 takes the two halves of a coroutine promise's operator new and delete for a mismatch
                       -Wno-mismatched-new-delete
                       # g++ collects its garbage from 128 MiB on, which takes a tenth of its time or more
                       $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)

# Most of what CI does is compiling. So headers that most files include are read once for all layers and once for all tests,
# and eight files are compiled together: what they make of templates is compiled once for them all. A file that lacks an
# include, or uses a name that a neighbour has as well, is found by debug, which compiles each by itself (in part also by
# tests/structure, which knows the names and what is precompiled).
option(ISTHMUS_TOGETHER "Compile eight files at a time, with precompiled headers" OFF)
set(PRECOMPILED
  <fmt/format.h> <algorithm> <array> <chrono> <filesystem> <functional> <map> <memory> <optional> <set> <span> <string> <vector>)
# isthmus_together(target first [HEADERS …]): `first` is the one of all targets with the same flags whose precompiled
# headers, to which these are added, the others use too.
function(isthmus_together target first)
  if(NOT ISTHMUS_TOGETHER)
    return()
  elseif(target STREQUAL first)
    target_precompile_headers(${target} PRIVATE ${ARGN} ${PRECOMPILED})
  else()
    target_precompile_headers(${target} REUSE_FROM ${first})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  # Of a class with members of types that only its own file knows.
  target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
endfunction()

function(isthmus_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 layer "" "ALONE" "SOURCES;HEADERS;USES;LIBS;PUBLIC_LIBS;FLAGS")
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
  target_compile_options(isthmus_${name} PRIVATE ${layer_FLAGS})
  if(layer_FLAGS)
    isthmus_together(isthmus_${name} isthmus_${name})
  else()
    isthmus_together(isthmus_${name} isthmus_base)
  endif()
  set(alone ${layer_SOURCES})
  list(FILTER alone INCLUDE REGEX "${layer_ALONE}")
  if(layer_ALONE AND alone)
    set_source_files_properties(${alone} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endfunction()

# isthmus_test(kernels adamw_test.cc … [USES isthmus::kernels] [LIBS …] [LABEL …] [TIMEOUT s] [PROPERTIES …])
# One test binary per folder, tests/<folder>; each case is a ctest test with the label LABEL, the folder's name if left out
# (gtest_discover_tests can give a test only one). A sanitizer takes a tenth of a second to start, which there are
# thousands of: with ISTHMUS_TEST_PROCESSES so many processes run the cases of a binary, and the environment's GTEST_FILTER
# chooses among them (a process for one case ignores it).
set(ISTHMUS_TEST_PROCESSES 0 CACHE STRING "Processes that run the cases of a test binary; 0: one for each case")
function(isthmus_test name)
  cmake_parse_arguments(PARSE_ARGV 1 test "" "TIMEOUT;LABEL" "SOURCES;USES;LIBS;PROPERTIES")
  add_executable(${name}_test ${test_SOURCES})
  target_link_libraries(${name}_test PRIVATE ${test_USES} isthmus_flags ${test_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_options(${name}_test PRIVATE ${ISTHMUS_TEST_FLAGS})
  isthmus_together(${name}_test base_test <gtest/gtest.h> <gmock/gmock.h>)
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 300)
  endif()
  if(NOT test_LABEL)
    set(test_LABEL ${name})
  endif()
  set(properties LABELS ${test_LABEL} ${test_PROPERTIES})
  if(ISTHMUS_TEST_PROCESSES EQUAL 0)
    gtest_discover_tests(${name}_test NO_PRETTY_VALUES DISCOVERY_TIMEOUT 60
                         PROPERTIES TIMEOUT ${test_TIMEOUT} ${properties})
    return()
  endif()
  foreach(process RANGE 1 ${ISTHMUS_TEST_PROCESSES})
    math(EXPR index "${process} - 1")
    add_test(NAME ${name}.${process} COMMAND ${name}_test --gtest_brief=1)
    set_tests_properties(${name}.${process} PROPERTIES TIMEOUT 900 ${properties}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${ISTHMUS_TEST_PROCESSES};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()
