# The libfabric layer: one set of sources, two entries. The FI_HOOK provider reaches every way
# in which libfabric can be loaded; the LD_PRELOAD shim is for libraries without hooking.
set(OFI_SOURCES calls.c library.c table.c patch.c fabric.c domain.c endpoint.c describe.c record.c pending.c
  msg.c tagged.c rma.c atomic.c cq.c arrival.c av.c eq.c mr.c)
list(TRANSFORM OFI_SOURCES PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
add_library(sigmatrace_ofi_objects OBJECT ${OFI_SOURCES})
target_link_libraries(sigmatrace_ofi_objects PUBLIC sigmatrace_core)
target_include_directories(sigmatrace_ofi_objects PUBLIC ${ofi_INCLUDE})

# libfabric looks for libNAME-fi.so, where NAME is the provider's.
add_library(sigmatrace_ofi_hook SHARED ${CMAKE_CURRENT_LIST_DIR}/hook.c)
set_target_properties(sigmatrace_ofi_hook PROPERTIES OUTPUT_NAME ofi_hook_sigmatrace-fi
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/prov)
add_library(sigmatrace_ofi SHARED ${CMAKE_CURRENT_LIST_DIR}/preload.c)
foreach(target sigmatrace_ofi_hook sigmatrace_ofi)
  target_link_libraries(${target} PRIVATE sigmatrace_ofi_objects sigmatrace_core ${CMAKE_DL_LIBS})
  # Patched tables of providers point into this library: it must stay when it is closed.
  target_link_options(${target} PRIVATE -Wl,-z,nodelete -Wl,--no-undefined)
endforeach()
install(TARGETS sigmatrace_ofi LIBRARY DESTINATION ${ST_LIB_DIR})
install(TARGETS sigmatrace_ofi_hook LIBRARY DESTINATION ${ST_LIB_DIR}/prov)
