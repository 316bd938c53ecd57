# How much of the machine a test asks for. A slot of ctest is half a processor (scripts/tests.sh): as many tests run at once
# as the machine has processors for. tests/costs.tsv has a row a test: the seconds that it takes alone, and the seconds of a
# processor that it, its cluster or its rack take meanwhile. What runs by scripts/idle is not counted.
set(costs ${CMAKE_SOURCE_DIR}/tests/costs.tsv)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${costs})
file(STRINGS ${costs} rows)
list(POP_FRONT rows)
foreach(row ${rows})
  if(NOT row MATCHES "^([a-z0-9_.]+)\t([1-9][0-9]*)\t([1-9][0-9]*)$")
    message(FATAL_ERROR "${costs}: '${row}' is not: test<tab>seconds<tab>seconds of a processor, whole and above 0")
  endif()
  if(DEFINED MUSTER_WALL_${CMAKE_MATCH_1})
    message(FATAL_ERROR "${costs} has two rows of ${CMAKE_MATCH_1}")
  endif()
  set(MUSTER_WALL_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
  set(MUSTER_CPU_${CMAKE_MATCH_1} ${CMAKE_MATCH_3})
endforeach()

# muster_test_share(NAME... [IDLE] [WHOLE] [FIRST]): sets the tests' COST, by which ctest starts the longest first, and their slots:
# one to three by the table, one of an IDLE test, whose command scripts/idle runs, four of one that takes the WHOLE machine.
# FIRST: before all that are not. A test without a row counts as a minute with one processor.
function(muster_test_share)
  cmake_parse_arguments(S "IDLE;WHOLE;FIRST" "" "" ${ARGN})
  foreach(name ${S_UNPARSED_ARGUMENTS})
    set(wall 60)
    set(cpu 60)
    if(DEFINED MUSTER_WALL_${name})
      set(wall ${MUSTER_WALL_${name}})
      set(cpu ${MUSTER_CPU_${name}})
    endif()
    math(EXPR slots "(2 * ${cpu} + ${wall} - 1) / ${wall}")  # rounded up
    if(S_IDLE)
      set(slots 1)
    elseif(S_WHOLE)
      set(slots 4)
    elseif(slots GREATER 3)
      set(slots 3)
    endif()
    if(S_FIRST)
      math(EXPR wall "${wall} + 10000")
    endif()
    set_tests_properties(${name} PROPERTIES COST ${wall} PROCESSORS ${slots})
  endforeach()
endfunction()
