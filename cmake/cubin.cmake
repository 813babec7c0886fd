# cmake -DNVCC= -DSOURCE= -DFATBIN= -DTARGET= -DSPILLS= -DSTRICT= -DDEFINES=A=1,B=2 -DOPTIONS= -P cubin.cmake: compiles one unit of
# the CUDA kernels, for sm_<TARGET> alone, into a file that the driver loads as it is (where OPTIONS have nvcc compress it,
# the driver decompresses it); and warns of what would be slow without a word: registers spilled beyond SPILLS bytes,
# setmaxnreg ignored (C7508), wgmma serialised (C7510, 11, 12, 14, 15, 20). STRICT (ATTN_WERROR): these are errors.
set(kind WARNING)
if(STRICT)
  set(kind FATAL_ERROR)
endif()
string(REPLACE "," ";" defines "${DEFINES}")
list(TRANSFORM defines PREPEND -D)
string(REPLACE "," ";" options "${OPTIONS}")
cmake_path(GET FATBIN PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
execute_process(
  COMMAND ${NVCC} -fatbin -gencode=arch=compute_${TARGET},code=sm_${TARGET} -O3 -std=c++17 -Xptxas=-v ${defines} ${options} ${SOURCE}
    -o ${FATBIN}.new
  RESULT_VARIABLE failed OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(failed)
  message(FATAL_ERROR "${text}")
endif()
string(REGEX MATCH "[^\n]*C75(08|10|11|12|14|15|20)[^\n]*" warning "${text}")
if(warning)
  message(${kind} "${FATBIN}: ${warning}")
endif()
string(REGEX MATCHALL "[0-9]+ bytes spill (stores|loads)" spills "${text}")
foreach(spill IN LISTS spills)
  string(REGEX MATCH "^[0-9]+" bytes "${spill}")
  if(bytes GREATER SPILLS)
    message(${kind} "${FATBIN}: ${spill}, above the ${SPILLS} that are allowed")
  endif()
endforeach()
file(RENAME ${FATBIN}.new ${FATBIN})
