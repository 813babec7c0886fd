# Installs the headers, the libraries, shared and static, the command, the CMake package (attn::attn, attn::attn_static,
# attn::attn_parallel, ...), attn.pc, attn-parallel.pc and what they need.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/attn)
install(FILES include/attn.h include/attn_kv.h include/attn_napkin.h include/attn_parallel.h include/attn_quant.h
  TYPE INCLUDE)
install(FILES ${machine_files} DESTINATION ${CMAKE_INSTALL_DATADIR}/attn/machines)
set(installed attn_shared attn_static attn_parallel_shared attn_parallel_static)
install(TARGETS ${installed} EXPORT attn)
set(pc_files attn attn-shared attn-parallel attn-parallel-shared)
set(ATTN_HAS_MPI FALSE) # in the CMake package
if(TARGET attn_parallel_mpi_shared)
  set(ATTN_HAS_MPI TRUE)
  install(FILES include/attn_parallel_mpi.h TYPE INCLUDE)
  install(TARGETS attn_parallel_mpi_shared attn_parallel_mpi_static EXPORT attn)
  list(APPEND installed attn_parallel_mpi_shared attn_parallel_mpi_static)
  list(APPEND pc_files attn-parallel-mpi)
endif()
if(TARGET attn)
  install(TARGETS attn)
  list(APPEND installed attn)
  if(ATTN_MANUAL)
    install(FILES ${ATTN_MANUAL}/attn.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${ATTN_MANUAL}/attn.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME attn)
    install(FILES ${ATTN_MANUAL}/_attn DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
    install(FILES ${ATTN_MANUAL}/attn.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
  file(GLOB peer_scripts CONFIGURE_DEPENDS bench/peers/*.py) # which attn bench starts
  install(FILES ${peer_scripts} DESTINATION ${CMAKE_INSTALL_DATADIR}/attn/bench/peers)
endif()
add_custom_target(attn_installed DEPENDS ${installed}) # all that is installed, and no tests or examples

# Inside the shared library pthread and libm are its own business; the static one passes them on.
install(EXPORT attn NAMESPACE attn:: FILE attnTargets.cmake DESTINATION ${package_dir})
configure_package_config_file(cmake/attnConfig.cmake.in attnConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(attnConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/attnConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/attnConfigVersion.cmake
  DESTINATION ${package_dir})

# Paths relative to the file itself, so that the installed tree can be moved.
file(RELATIVE_PATH PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_LIBDIR libdir_absolute)
cmake_path(IS_ABSOLUTE CMAKE_INSTALL_INCLUDEDIR includedir_absolute)
set(PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
set(PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
if(libdir_absolute)
  set(PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
endif()
if(includedir_absolute)
  set(PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
endif()
# Two files, so that `--static` links the static library: see attn.pc.in.
foreach(file IN LISTS pc_files)
  configure_file(cmake/${file}.pc.in ${file}.pc @ONLY)
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${file}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
