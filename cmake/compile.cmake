# Flags of everything built here: C11, warnings, sanitizers. A release is -O2 (kernels say their own in kernels.def),
# and never -march=native: what a machine runs is found out when running.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, ..." FORCE)
  endif()
  set(CMAKE_C_FLAGS_RELEASE "-O2")
  if(ATTN_SANITIZE) # gcc takes twice as long over what sanitizers add with -O2, and the tests hardly less
    set(CMAKE_C_FLAGS_RELEASE "-O1")
  endif()
endif()

add_compile_options(-Wall -Wextra -Wpedantic -Wshadow "$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
# gcc's notes that vectors are passed otherwise than by gcc 4: nothing passes them between compilers here.
add_compile_options("$<$<OR:$<C_COMPILER_ID:GNU>,$<CXX_COMPILER_ID:GNU>>:-Wno-psabi>")
if(ATTN_WERROR)
  add_compile_options(-Werror)
endif()

set(instruments ${ATTN_SANITIZE})
if(ATTN_FUZZ)
  set(instruments fuzzer-no-link,address,undefined)
endif()
if(instruments)
  add_compile_options(-fsanitize=${instruments} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${instruments})
endif()
