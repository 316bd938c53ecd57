# Several sources of a target in one file, so that the headers that they share are compiled once: a whole build takes half of the
# time. One changed source compiles its batch anew.
#
# CMake's own UNITY_BUILD is not for us: before 4.0 it writes absolute paths into the files, and what ccache has of one checkout
# serves no other. Ours are relative to the root, where all includes begin.
set(MUSTER_BATCHES musterd CACHE STRING "Which sources are compiled in batches: all, those of musterd, none")
set_property(CACHE MUSTER_BATCHES PROPERTY STRINGS all musterd none)
set(MUSTER_BATCH_SIZE 12)
# The archives of musterd, muster and muster-train, and the largest tests. A program links the whole of each batch of which it needs
# one source. These programs need all sources anyway; small programs, such as muster-door, link other archives.
set(MUSTER_BATCHES_OF_MUSTERD
  muster_agent muster_beat muster_catalog muster_cli muster_collectives muster_coordinator muster_directory_checkpoints muster_engine
  muster_exchange muster_gang muster_partner muster_preflight muster_service muster_slurm_client
  base_test catalog_test engine_test)

# muster_unity_target(NAME): all C++ sources but those that are made by the build, and those with properties of their own
# (SKIP_UNITY_BUILD_INCLUSION, as for CMake's, or definitions).
function(muster_unity_target target)
  get_target_property(type ${target} TYPE)
  if(NOT type MATCHES "^(STATIC_LIBRARY|SHARED_LIBRARY|MODULE_LIBRARY|OBJECT_LIBRARY|EXECUTABLE)$")
    return()
  endif()
  get_target_property(sources ${target} SOURCES)
  get_target_property(folder ${target} SOURCE_DIR)
  set(alone)
  set(together)
  foreach(source ${sources})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE OUTPUT_VARIABLE path)
    cmake_path(IS_PREFIX CMAKE_BINARY_DIR ${path} made)
    cmake_path(IS_PREFIX CMAKE_SOURCE_DIR ${path} ours)
    get_source_file_property(skipped ${path} TARGET_DIRECTORY ${target} SKIP_UNITY_BUILD_INCLUSION)
    get_source_file_property(definitions ${path} TARGET_DIRECTORY ${target} COMPILE_DEFINITIONS)
    if(source MATCHES "\\.cc$" AND ours AND NOT made AND NOT skipped AND NOT definitions)
      cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
      list(APPEND together ${path})
    else()
      list(APPEND alone ${source})
    endif()
  endforeach()
  list(LENGTH together count)
  if(count LESS 2)
    return()
  endif()
  set(batches)
  set(first 0)
  while(first LESS count)
    list(SUBLIST together ${first} ${MUSTER_BATCH_SIZE} batch)
    list(TRANSFORM batch REPLACE "(.+)" "#include \"\\1\"\n")
    list(JOIN batch "" text)
    set(file ${CMAKE_BINARY_DIR}/unity/${target}_${first}.cc)
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
    list(APPEND batches ${file})
    math(EXPR first "${first} + ${MUSTER_BATCH_SIZE}")
  endwhile()
  set_property(TARGET ${target} PROPERTY SOURCES ${alone} ${batches})
endfunction()

# muster_unity_directory(DIRECTORY): all targets of a directory and of those below it.
function(muster_unity_directory directory)
  get_property(targets DIRECTORY ${directory} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    muster_unity_target(${target})
  endforeach()
  get_property(children DIRECTORY ${directory} PROPERTY SUBDIRECTORIES)
  foreach(child ${children})
    muster_unity_directory(${child})
  endforeach()
endfunction()

# To be called when all targets are there.
function(muster_unity)
  if(MUSTER_BATCHES STREQUAL "all")
    muster_unity_directory(${CMAKE_SOURCE_DIR})
  elseif(MUSTER_BATCHES STREQUAL "musterd")
    foreach(target ${MUSTER_BATCHES_OF_MUSTERD})
      if(TARGET ${target})
        muster_unity_target(${target})
      endif()
    endforeach()
  elseif(NOT MUSTER_BATCHES STREQUAL "none")
    message(FATAL_ERROR "MUSTER_BATCHES is all, musterd or none, not ${MUSTER_BATCHES}")
  endif()
endfunction()
