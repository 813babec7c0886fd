# libattn_parallel: attention over ranks, on libattn's public functions; libattn_parallel_mpi: its engine over MPI.
file(GLOB parallel_sources CONFIGURE_DEPENDS src/parallel/*.c)
add_library(attn_parallel_static STATIC ${parallel_sources})
# The shared library has copies of those of libattn's functions that are not public and keep no state.
list(TRANSFORM parallel_sources PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/ REGEX "^src")
add_library(attn_parallel_shared SHARED ${parallel_sources} src/parallel/shared/error.c src/base/decimal.c
  src/base/detect.c src/base/text_buffer.c src/problem/args.c src/problem/desc.c src/problem/keys.c src/problem/ranges.c
  src/problem/sequence.c)

set(parallel_libraries attn_parallel)
if(NOT ATTN_MPI STREQUAL "OFF" AND NOT CMAKE_CROSSCOMPILING)
  if(ATTN_MPI STREQUAL "AUTO")
    find_package(MPI QUIET COMPONENTS C)
  else()
    find_package(MPI REQUIRED COMPONENTS C)
  endif()
  if(MPI_C_FOUND)
    foreach(kind static shared)
      string(TOUPPER ${kind} type)
      add_library(attn_parallel_mpi_${kind} ${type} src/parallel/mpi/engine.c)
      target_link_libraries(attn_parallel_mpi_${kind} PRIVATE MPI::MPI_C)
    endforeach()
    list(APPEND parallel_libraries attn_parallel_mpi)
  else()
    message(STATUS "Left out: libattn_parallel_mpi (no MPI found; Debian: libopenmpi-dev)")
  endif()
endif()

foreach(library IN LISTS parallel_libraries)
  foreach(kind static shared)
    set(target ${library}_${kind})
    set_target_properties(${target} PROPERTIES
      OUTPUT_NAME ${library} POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
    target_include_directories(${target} PRIVATE src PUBLIC
      $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    if(library STREQUAL attn_parallel)
      target_link_libraries(${target} PUBLIC attn_${kind} PRIVATE Threads::Threads m)
    else()
      target_link_libraries(${target} PUBLIC attn_parallel_${kind})
    endif()
  endforeach()
  add_library(attn::${library} ALIAS ${library}_shared)
  add_library(attn::${library}_static ALIAS ${library}_static)
  set_target_properties(${library}_static PROPERTIES EXPORT_NAME ${library}_static)
  set_target_properties(${library}_shared PROPERTIES
    EXPORT_NAME ${library} VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  # Only its own functions are seen from outside: what it copies of libattn stays inside.
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/cmake/${library}.map)
  target_link_options(${library}_shared PRIVATE -Wl,--version-script=${script})
  set_target_properties(${library}_shared PROPERTIES LINK_DEPENDS ${script})
  if(NOT instruments)
    target_link_options(${library}_shared PRIVATE -Wl,--no-undefined)
  endif()
endforeach()
