# The CUDA backend's host code, and what it embeds (src/cuda/kernel.h): the text of all device code and,
# where nvcc is found, the machine code that it makes of it, compressed to a sixth: one unit per kernel of an
# architecture's tables (sm90/*/variants.txt) that budget.txt has made ahead of time, and one per other *.cu.
# Without nvcc the texts are compiled when running.
#
# ATTN_NVCC is the compiler; empty: none. It is looked for in releases only: debug builds, sanitizers and fuzzers do without.
if(ATTN_CUDA AND PROJECT_IS_TOP_LEVEL AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT instruments AND NOT CMAKE_CROSSCOMPILING)
  find_program(ATTN_NVCC nvcc HINTS /usr/local/cuda/bin
    DOC "nvcc, which compiles the CUDA kernels into the library; empty: none does")
endif()

# CUDA 13 compresses so that its own drivers, and later ones, can load it. script/same-code reads them uncompressed.
option(ATTN_CUDA_COMPRESS "Compress the CUDA kernels in the library" ON)
set(cuda_compress)
if(ATTN_NVCC)
  execute_process(COMMAND ${ATTN_NVCC} --version OUTPUT_VARIABLE text ERROR_QUIET)
  if(text MATCHES "release ([0-9]+)" AND CMAKE_MATCH_1 GREATER_EQUAL 13)
    set(cuda_compress --compress-mode=$<IF:$<BOOL:${ATTN_CUDA_COMPRESS}>,size,none>)
  endif()
endif()

# Libraries for machines without NVRTC; script/same-code compares every kernel.
option(ATTN_CUDA_ASKED "Have nvcc compile also the kernels that src/cuda/budget.txt leaves to NVRTC" OFF)

option(ATTN_CUDA_DELAYS "CUDA kernels whose warpgroups dawdle: for tests" OFF)

# What src/cuda/budget.txt says of a unit: sets *made to AHEAD or ASKED.
function(attn_cuda_made unit made)
  foreach(line IN LISTS cuda_families)
    if(NOT line MATCHES "^family +([^ ]+) +[^ ]+ +[0-9]+ +[0-9]+ +[0-9]+ +(AHEAD|ASKED) +([^ ]+)$")
      message(FATAL_ERROR "${cuda_budget}: a family has eight words: ${line}")
    endif()
    set(family ${CMAKE_MATCH_1})
    set(how ${CMAKE_MATCH_2})
    set(units ${CMAKE_MATCH_3})
    if(unit MATCHES "${units}")
      set(${made} ${how} PARENT_SCOPE)
      set_property(GLOBAL APPEND_STRING PROPERTY ATTN_CUDA_UNITS "${unit} ${family}\n")
      return()
    endif()
  endforeach()
  set(${made} AHEAD PARENT_SCOPE) # of no family, to which the test objects
  set_property(GLOBAL APPEND_STRING PROPERTY ATTN_CUDA_UNITS "${unit} none\n")
endfunction()

# A unit's machine code, made by cubin.cmake: nvcc, and a look at what it says.
function(attn_cuda_unit target unit source spills)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/cuda/${unit}.fatbin)
  set(defines ${ARGN})
  if(ATTN_CUDA_DELAYS)
    list(APPEND defines ATTN_DELAYS)
  endif()
  list(JOIN defines "," defines)
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -DNVCC=${ATTN_NVCC} -DSOURCE=${source} -DFATBIN=${fatbin} -DTARGET=${target}
      -DSPILLS=${spills} -DSTRICT=${ATTN_WERROR} "-DDEFINES=${defines}" "-DOPTIONS=${cuda_compress},-I${cuda_root}"
      -P ${CMAKE_CURRENT_SOURCE_DIR}/cmake/cubin.cmake
    DEPENDS ${cuda_texts} ${CMAKE_CURRENT_SOURCE_DIR}/cmake/cubin.cmake VERBATIM COMMENT "CUDA ${unit}")
  list(LENGTH cuda_fatbins number)
  string(APPEND cuda_images "IMAGE(attn_cuda_image_${number}, \"${unit}\", \"${fatbin}\")\n")
  set(cuda_images "${cuda_images}" PARENT_SCOPE)
  set(cuda_fatbins ${cuda_fatbins} ${fatbin} PARENT_SCOPE)
endfunction()

# Reads a table of an architecture's variants: appends to the global property ATTN_CUDA_VARIANTS_<arch> one item per
# kernel, "MADE UNIT SOURCE SPILLS DEFINITION ...", and sets *rows to the same as rows of C: MACRO(value of each column ...,
# spills, made, the definitions as options of a compiler ...).
function(attn_cuda_read_variants arch table macro stem source rows)
  set(text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(STRINGS ${table} lines REGEX "^[^#]")
  list(POP_FRONT lines head)
  string(REGEX REPLACE " +" ";" columns "${head}")
  list(LENGTH columns width)
  foreach(line IN LISTS lines)
    string(REGEX REPLACE " +" ";" values "${line}")
    list(LENGTH values count)
    if(NOT count EQUAL width)
      message(FATAL_ERROR "${table}: ${count} values, but ${width} columns: ${line}")
    endif()
    foreach(column value IN ZIP_LISTS columns values)
      if(column MATCHES "^(name|dtype|spills)$")
        string(REPLACE "/" ";" ${column} "${value}")
      endif()
    endforeach()
    foreach(type allowed IN ZIP_LISTS dtype spills)
      if(NOT DEFINED type OR NOT DEFINED allowed)
        message(FATAL_ERROR "${table}: as many spills as dtypes: ${line}")
      endif()
      set(row ${type}_${name})
      string(TOUPPER ${type} upper)
      set(cells ${row} ${upper})
      set(defines ATTN_NAME=${row} ATTN_DTYPE=${upper})
      foreach(column value IN ZIP_LISTS columns values)
        if(NOT column MATCHES "^(name|dtype|spills)$")
          string(TOUPPER ${column} upper)
          list(APPEND cells ${value})
          list(APPEND defines ATTN_${upper}=${value})
        endif()
      endforeach()
      list(JOIN defines "|" words)
      attn_cuda_made(${stem}${row} made)
      set_property(GLOBAL APPEND PROPERTY ATTN_CUDA_VARIANTS_${arch} "${made}|${stem}${row}|${source}|${allowed}|${words}")
      list(TRANSFORM defines REPLACE "(.+)" "\"-D\\1\"")
      list(JOIN cells ", " cells)
      list(JOIN defines ", " defines)
      string(APPEND text "${macro}(${cells}, ${allowed}, ${made}, ${defines}),\n")
    endforeach()
  endforeach()
  set(${rows} "${text}" PARENT_SCOPE)
endfunction()

# function(argument ... unit source spills definitions ...) for each kernel of an architecture's tables that is made as
# `made` says: AHEAD, or, of all, AHEAD|ASKED.
macro(attn_cuda_each_variant arch made function)
  get_property(variants GLOBAL PROPERTY ATTN_CUDA_VARIANTS_${arch})
  foreach(variant IN LISTS variants)
    string(REPLACE "|" ";" variant "${variant}")
    list(POP_FRONT variant variant_made)
    if(NOT variant_made MATCHES "${made}")
      continue()
    endif()
    cmake_language(CALL ${function} ${ARGN} ${variant})
  endforeach()
endmacro()

# Appends an architecture's kernels as rows of C to cuda_kernels, those of its tables forward, decode and backward/variants.txt
# before the fallback kernels of their direction; what makes them initialisers to cuda_tables; itself to cuda_archs (kernels.c).
macro(attn_cuda_rows arch folder)
  string(TOUPPER ATTN_${arch} prefix)
  foreach(form forward decode backward)
    string(TOUPPER _${form} macro)
    set(stem attn_${arch}_${form}_)
    if(form STREQUAL "forward")
      set(macro)
      set(stem attn_${arch}_)
    endif()
    set(rows)
    if(EXISTS ${folder}/${form}/variants.txt)
      attn_cuda_read_variants(${arch} ${folder}/${form}/variants.txt ${prefix}${macro} ${stem} ${folder}/${form}/${form}.cu rows)
    endif()
    string(APPEND cuda_kernels "${rows}")
    if(form STREQUAL "decode")
      string(APPEND cuda_kernels "${prefix}_FALLBACKS\n")
    elseif(form STREQUAL "backward")
      string(APPEND cuda_kernels "${prefix}_BACKWARD_FALLBACKS\n")
    endif()
  endforeach()
  string(APPEND cuda_tables "#include \"cuda/${arch}/host/table.h\"\n")
  string(APPEND cuda_archs "&attn_${arch},\n")
endmacro()

# Writes what kernels.c includes of them.
macro(attn_cuda_write_rows output)
  foreach(name kernels tables archs)
    file(CONFIGURE OUTPUT ${output}/cuda_${name}.def CONTENT "${cuda_${name}}" @ONLY)
  endforeach()
endmacro()

# An architecture: its folder src/cuda/<arch>, which nvcc compiles for `target`. Adds its rows, its texts to cuda_texts and,
# where there is nvcc, what becomes of it to cuda_fatbins.
macro(attn_cuda_arch arch target)
  set(folder ${cuda_root}/${arch})
  attn_cuda_rows(${arch} ${folder})
  file(GLOB_RECURSE texts CONFIGURE_DEPENDS ${folder}/*.h ${folder}/*.cu)
  list(FILTER texts EXCLUDE REGEX "/${arch}/host/") # their folder, not one that the whole tree lies in
  list(APPEND cuda_texts ${texts})
  if(ATTN_NVCC)
    set(made_by_nvcc AHEAD)
    if(ATTN_CUDA_ASKED)
      set(made_by_nvcc "AHEAD|ASKED")
    endif()
    attn_cuda_each_variant(${arch} "${made_by_nvcc}" attn_cuda_unit ${target})
  endif()
  file(GLOB units CONFIGURE_DEPENDS ${folder}/*.cu)
  foreach(unit IN LISTS units)
    cmake_path(RELATIVE_PATH unit BASE_DIRECTORY ${cuda_root} OUTPUT_VARIABLE name)
    attn_cuda_made(${name} made)
    if(ATTN_NVCC)
      attn_cuda_unit(${target} ${name} ${unit} 28) # of which none is fast
    endif()
  endforeach()
endmacro()

# Sets *result to the sources of the backend, or to those that stand for it.
function(attn_cuda_sources result)
  set(cuda_root ${CMAKE_CURRENT_SOURCE_DIR}/src/cuda) # includes in device code start here
  set(build_folder ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  if(NOT ATTN_CUDA)
    set(${result} ${cuda_root}/absent.c PARENT_SCOPE)
    return()
  endif()
  set(cuda_budget ${cuda_root}/budget.txt)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${cuda_budget})
  file(STRINGS ${cuda_budget} cuda_families REGEX "^family")
  file(GLOB_RECURSE cuda_texts CONFIGURE_DEPENDS ${cuda_root}/common/*.h)
  attn_cuda_arch(sm90 90a)
  attn_cuda_write_rows(${build_folder})
  get_property(units GLOBAL PROPERTY ATTN_CUDA_UNITS)
  file(CONFIGURE OUTPUT ${build_folder}/units.txt CONTENT "${units}" @ONLY)
  if(ATTN_NVCC)
    add_custom_target(attn_cubins DEPENDS ${cuda_fatbins})
  endif()
  foreach(text IN LISTS cuda_texts)
    cmake_path(RELATIVE_PATH text BASE_DIRECTORY ${cuda_root} OUTPUT_VARIABLE name)
    string(MAKE_C_IDENTIFIER ${name} label)
    string(APPEND cuda_files "TEXT(attn_cuda_text_${label}, \"${name}\", \"${text}\")\n")
  endforeach()
  set(list ${build_folder}/embedded.def)
  file(CONFIGURE OUTPUT ${list} CONTENT "${cuda_files}${cuda_images}" @ONLY)
  file(GLOB sources CONFIGURE_DEPENDS ${cuda_root}/*.c ${cuda_root}/*/host/*.c)
  list(REMOVE_ITEM sources ${cuda_root}/absent.c)
  if(ATTN_CUDA_DELAYS)
    set_property(SOURCE ${cuda_root}/unit.c APPEND PROPERTY COMPILE_DEFINITIONS ATTN_CUDA_DELAYS)
  endif()
  set_property(SOURCE ${cuda_root}/embedded.c APPEND PROPERTY OBJECT_DEPENDS "${list};${cuda_texts};${cuda_fatbins}")
  set_property(SOURCE ${cuda_root}/embedded.c ${cuda_root}/kernels.c APPEND PROPERTY INCLUDE_DIRECTORIES ${build_folder})
  set(${result} ${sources} PARENT_SCOPE)
endfunction()

# The reference of `attn check` as machine code in `source`, its host's half.
function(attn_cuda_reference source)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/cuda/reference.fatbin)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR})
  add_custom_command(OUTPUT ${fatbin}
    COMMAND ${CMAKE_COMMAND} -DNVCC=${ATTN_NVCC} -DSOURCE=${folder}/check/gpu/reference.cu -DFATBIN=${fatbin} -DTARGET=90a
      -DSPILLS=64 -DSTRICT=${ATTN_WERROR} -DDEFINES=
      "-DOPTIONS=${cuda_compress},-fmad=false,-I${folder},-I${folder}/include,-I${folder}/src"
      -P ${folder}/cmake/cubin.cmake
    DEPENDS ${folder}/check/gpu/reference.cu ${folder}/check/gpu/reference.h ${folder}/check/gpu/reference_pairs.h
      ${folder}/check/gpu/reference_gradients.h ${folder}/include/attn.h
      ${folder}/src/num/half.h ${folder}/src/num/philox.h ${folder}/cmake/cubin.cmake VERBATIM COMMENT "CUDA reference")
  set_property(SOURCE ${source} APPEND PROPERTY OBJECT_DEPENDS ${fatbin})
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS CHECK_GPU_CUBIN="${fatbin}")
endfunction()
