# The verbs layer: LD_PRELOAD shim for libibverbs and, where its header is, librdmacm.
file(GLOB ST_VERBS_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
find_path(rdmacm_INCLUDE rdma/rdma_cma.h)
if(NOT rdmacm_INCLUDE)
  message(STATUS "sigmatrace: no addresses of rdma_cm: no rdma/rdma_cma.h; Debian package librdmacm-dev brings it")
  list(REMOVE_ITEM ST_VERBS_SOURCES ${CMAKE_CURRENT_LIST_DIR}/cm.c)
endif()
add_library(sigmatrace_verbs SHARED ${ST_VERBS_SOURCES})
target_include_directories(sigmatrace_verbs PRIVATE ${verbs_INCLUDE})
target_link_libraries(sigmatrace_verbs PRIVATE sigmatrace_core Threads::Threads ${CMAKE_DL_LIBS})
# The wrappers carry libibverbs' own version nodes: what is bound to IBVERBS_1.0 must not meet them.
set(ST_VERBS_MAP ${CMAKE_CURRENT_LIST_DIR}/verbs.map)
# Patched tables point into this library: it must stay when it is closed.
target_link_options(sigmatrace_verbs PRIVATE -Wl,--version-script=${ST_VERBS_MAP}
  -Wl,-z,nodelete -Wl,--no-undefined -Wl,--undefined-version)
set_target_properties(sigmatrace_verbs PROPERTIES LINK_DEPENDS ${ST_VERBS_MAP})
install(TARGETS sigmatrace_verbs LIBRARY DESTINATION ${ST_LIB_DIR})
