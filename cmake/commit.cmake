# The commit that results name: attn_commit.h, made anew at every build (and touched only when it changes).
# Included after attn_bench and attn_command it adds that step; run as a script it is that step. Committed results
# themselves do not make a tree dirty.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(commit_header ${CMAKE_CURRENT_BINARY_DIR}/commit/attn_commit.h)
  add_custom_target(attn_commit
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR} -DHEADER=${commit_header} -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${commit_header} VERBATIM)
  foreach(target attn_bench attn_command)
    add_dependencies(${target} attn_commit)
    target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/commit)
  endforeach()
  return()
endif()

set(commit unknown)
if(DEFINED ENV{ATTN_COMMIT}) # a copy without its history, or with an older one, is told
  set(commit $ENV{ATTN_COMMIT})
endif()
find_program(git git)
if(NOT DEFINED ENV{ATTN_COMMIT} AND git AND EXISTS ${SOURCE}/.git)
  execute_process(COMMAND ${git} describe --always --abbrev=12 WORKING_DIRECTORY ${SOURCE}
    OUTPUT_VARIABLE name RESULT_VARIABLE failed OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT failed)
    set(commit ${name})
    execute_process(COMMAND ${git} diff --quiet HEAD -- . ":(exclude)bench/results" WORKING_DIRECTORY ${SOURCE}
      RESULT_VARIABLE dirty ERROR_QUIET)
    if(dirty)
      string(APPEND commit -dirty)
    endif()
  endif()
endif()
set(text "#define ATTN_COMMIT \"${commit}\"\n")
if(EXISTS ${HEADER})
  file(READ ${HEADER} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${HEADER} "${text}")
endif()
