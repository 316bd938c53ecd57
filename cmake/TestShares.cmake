# How much of the machine a test asks for. A slot of ctest is a quarter of a processor (scripts/tests.sh): as many tests run at once
# as the machine has processors for. tests/costs.tsv has a row a test, as `tests/stability --costs` writes it: the seconds that the
# test takes alone, and the processor seconds that it, its cluster or its rack take meanwhile.
set(costs ${CMAKE_SOURCE_DIR}/tests/costs.tsv)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${costs})
file(STRINGS ${costs} rows)
list(POP_FRONT rows)
foreach(row ${rows})
  if(NOT row MATCHES "^([A-Za-z0-9_.]+)\t([1-9][0-9]*)\t([1-9][0-9]*)$")
    message(FATAL_ERROR "${costs}: '${row}' is not: test<tab>seconds<tab>processor seconds, whole and above 0")
  endif()
  if(DEFINED MUSTER_WALL_${CMAKE_MATCH_1})
    message(FATAL_ERROR "${costs} has two rows of ${CMAKE_MATCH_1}")
  endif()
  set(MUSTER_WALL_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  set(MUSTER_CPU_${CMAKE_MATCH_1} ${CMAKE_MATCH_3})
  list(APPEND MUSTER_COSTS ${CMAKE_MATCH_1})
endforeach()

# muster_test_share(NAME... [IDLE] [SLOTS N] [FIRST]): sets the tests' slots: one to six by the table, one of an IDLE test, whose
# command scripts/idle runs, or N. Sets their COST, too, by which ctest starts those with most slots first, and of these the longest:
# small tests find room beside large ones, and large ones find none beside small ones. FIRST: before all that are not.
# A test without a row counts as a minute with half a processor.
function(muster_test_share)
  cmake_parse_arguments(S "IDLE;FIRST" "SLOTS" "" ${ARGN})
  foreach(name ${S_UNPARSED_ARGUMENTS})
    set(wall 60)
    set(cpu 20)
    if(DEFINED MUSTER_WALL_${name})
      set(wall ${MUSTER_WALL_${name}})
      set(cpu ${MUSTER_CPU_${name}})
    endif()
    # On a machine that is two thirds as fast the processor takes 3/2 as long, and the rest of the time stays: the share there is
    # 3 cpu / (2 wall + cpu), which is rounded up to slots.
    math(EXPR slots "(4 * 3 * ${cpu} + 2 * ${wall} + ${cpu} - 1) / (2 * ${wall} + ${cpu})")
    if(S_IDLE)
      set(slots 1)
    elseif(S_SLOTS)
      set(slots ${S_SLOTS})
    elseif(slots GREATER 6)
      set(slots 6)
    endif()
    math(EXPR cost "1000 * ${slots} + ${wall}")
    if(S_FIRST)
      math(EXPR cost "${cost} + 10000")
    endif()
    set_tests_properties(${name} PROPERTIES COST ${cost} PROCESSORS ${slots})
  endforeach()
  set_property(GLOBAL APPEND PROPERTY MUSTER_SHARED_TESTS ${S_UNPARSED_ARGUMENTS})
endfunction()

# muster_check_costs(): each row is a test's. To be called when all tests are there.
function(muster_check_costs)
  get_property(tests GLOBAL PROPERTY MUSTER_SHARED_TESTS)
  set(gone ${MUSTER_COSTS})
  list(REMOVE_ITEM gone ${tests})
  if(gone)
    message(FATAL_ERROR "${costs} has rows of tests that are not there: ${gone}")
  endif()
endfunction()
