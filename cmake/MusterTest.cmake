# Tests are declared next to one another in the same way everywhere.
find_package(GTest REQUIRED)

set(MUSTER_TEST_OPTIONS)
if(MUSTER_SANITIZE MATCHES "undefined")
  list(APPEND MUSTER_TEST_OPTIONS -fno-sanitize=undefined)
endif()
if(MUSTER_SANITIZE MATCHES "fuzzer")
  list(APPEND MUSTER_TEST_OPTIONS -fno-sanitize=fuzzer-no-link)
endif()

# clang compiles what the tests include once, which saves it more than a third of each test. (gcc gains little by that.)
# Not by target_precompile_headers, nor from a header of ours: either would have a path of this checkout in it, and ccache
# could not serve another one. All headers are the system's.
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  find_file(GMOCK_HEADER gmock/gmock.h REQUIRED)
  set_source_files_properties(${GMOCK_HEADER} PROPERTIES LANGUAGE CXX)
  add_library(muster_test_headers OBJECT EXCLUDE_FROM_ALL ${GMOCK_HEADER})
  set_target_properties(muster_test_headers PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(muster_test_headers PRIVATE
    -fPIE -O0 ${MUSTER_TEST_OPTIONS} -fpch-instantiate-templates "SHELL:-Xclang -fno-pch-timestamp" "SHELL:-x c++-header")
  foreach(header
      gtest/gtest.h algorithm atomic chrono condition_variable filesystem fstream functional map memory mutex optional
      random set sstream string string_view thread unordered_map utility variant vector)
    target_compile_options(muster_test_headers PRIVATE "SHELL:-include ${header}")
  endforeach()
  target_link_libraries(muster_test_headers PRIVATE GTest::gmock)
  # A file of its own: compiling waits for a custom target, not for an object.
  set(MUSTER_TEST_HEADERS ${CMAKE_BINARY_DIR}/test_headers.pch)
  add_custom_command(OUTPUT ${MUSTER_TEST_HEADERS}
    COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_OBJECTS:muster_test_headers> ${MUSTER_TEST_HEADERS}
    DEPENDS muster_test_headers $<TARGET_OBJECTS:muster_test_headers> VERBATIM)
  add_custom_target(test_headers DEPENDS ${MUSTER_TEST_HEADERS})
endif()

# muster_test(NAME SOURCES a.cc ... LIBS lib ...): a GoogleTest program, one ctest entry per program, label "unit"
# (another one by LABEL). 300 s is a deadline for a hang, not a speed limit. The test's own code is not optimised, which
# halves its compile time, unless it is OPTIMISED: what it tests is. Nor is it looked at for undefined behaviour, or
# measured for the fuzzers. Under the thread sanitizer only those with THREADS are built. The target `unit_tests` builds
# them all.
add_custom_target(unit_tests)
if(MUSTER_SANITIZE STREQUAL "thread")
  add_library(muster_tsan_suppressions OBJECT ${CMAKE_SOURCE_DIR}/tests/support/tsan_suppressions.cc)
endif()
function(muster_test name)
  cmake_parse_arguments(T "OPTIMISED;THREADS" "LABEL" "SOURCES;LIBS" ${ARGN})
  if(NOT T_LABEL)
    set(T_LABEL unit)
  endif()
  add_executable(${name} ${T_SOURCES})
  if(MUSTER_SANITIZE STREQUAL "thread")
    if(NOT T_THREADS)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
      return()
    endif()
    target_link_libraries(${name} PRIVATE muster_tsan_suppressions)
  endif()
  add_dependencies(unit_tests ${name})
  if(NOT T_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
    if(TARGET test_headers)
      add_dependencies(${name} test_headers)
      target_compile_options(${name} PRIVATE "SHELL:-include-pch ${MUSTER_TEST_HEADERS}")
    endif()
  endif()
  target_compile_options(${name} PRIVATE ${MUSTER_TEST_OPTIONS})
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${T_LABEL}.${name} COMMAND ${name})
  # A test that is skipped has not shown what it is for; ctest would not tell.
  set_tests_properties(${T_LABEL}.${name} PROPERTIES
    LABELS ${T_LABEL} TIMEOUT 900 FAIL_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
endfunction()

# muster_test_library(NAME SOURCES a.cc ... LIBS lib ...): what several tests share, compiled as they are.
function(muster_test_library name)
  cmake_parse_arguments(T "" "" "SOURCES;LIBS" ${ARGN})
  add_library(${name} STATIC EXCLUDE_FROM_ALL ${T_SOURCES})
  target_compile_options(${name} PRIVATE -O0 ${MUSTER_TEST_OPTIONS})
  target_link_libraries(${name} PUBLIC ${T_LIBS} GTest::gtest)
endfunction()

# muster_test_path(SOURCE NAME PATH): a path of this checkout for one source, as a macro. No other source has it, so that
# ccache serves them in every checkout.
function(muster_test_path source name path)
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS "${name}=\"${path}\"")
endfunction()

add_custom_target(fuzzers)

# muster_fuzzer(NAME SOURCES ... LIBS ... CORPUS dir): a libFuzzer target, run for 20 s by ctest, starting from the
# corpus kept in the tree. Only with MUSTER_FUZZ, which needs clang. The target `fuzzers` builds them all.
function(muster_fuzzer name)
  cmake_parse_arguments(F "" "CORPUS" "SOURCES;LIBS" ${ARGN})
  if(NOT MUSTER_FUZZ)
    return()
  endif()
  add_executable(${name} ${F_SOURCES})
  target_link_libraries(${name} PRIVATE ${F_LIBS} -fsanitize=fuzzer)
  add_dependencies(fuzzers ${name})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME fuzz.${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/fuzz/run $<TARGET_FILE:${name}> ${F_CORPUS})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 180)
endfunction()
