# Tests are declared next to one another in the same way everywhere.
find_package(GTest REQUIRED)

# muster_test(NAME SOURCES a.cc ... LIBS lib ...): a GoogleTest program, one ctest entry per program, label "unit"
# (another one by LABEL). 300 s is a deadline for a hang, not a speed limit. The test's own code is not optimised, which
# halves its compile time, unless it is OPTIMISED: what it tests is. Under the thread sanitizer only those with THREADS
# are built. The target `unit_tests` builds them all.
add_custom_target(unit_tests)
function(muster_test name)
  cmake_parse_arguments(T "OPTIMISED;THREADS" "LABEL" "SOURCES;LIBS" ${ARGN})
  if(NOT T_LABEL)
    set(T_LABEL unit)
  endif()
  add_executable(${name} ${T_SOURCES})
  if(MUSTER_SANITIZE STREQUAL "thread" AND NOT T_THREADS)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  add_dependencies(unit_tests ${name})
  if(NOT T_OPTIMISED)
    target_compile_options(${name} PRIVATE -O0)
  endif()
  target_link_libraries(${name} PRIVATE ${T_LIBS} GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${T_LABEL}.${name} COMMAND ${name})
  # A test that is skipped has not shown what it is for; ctest would not tell.
  set_tests_properties(${T_LABEL}.${name} PROPERTIES
    LABELS ${T_LABEL} TIMEOUT 300 FAIL_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
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
