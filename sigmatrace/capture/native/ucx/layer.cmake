# The UCX layer: LD_PRELOAD shim for UCP and UCT.
file(GLOB ST_UCX_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/ucx/*.c)
add_library(sigmatrace_ucx SHARED ${ST_UCX_SOURCES})
target_include_directories(sigmatrace_ucx PRIVATE ${ucx_INCLUDE})
# The real libraries are found at run time in the program's own scope, so none is linked.
target_link_libraries(sigmatrace_ucx PRIVATE sigmatrace_core Threads::Threads ${CMAKE_DL_LIBS})
install(TARGETS sigmatrace_ucx LIBRARY DESTINATION ${ST_LIB_DIR})
# As in UCX itself, an old callback is called as a new one, with arguments that it ignores.
target_compile_options(sigmatrace_ucx PRIVATE -Wno-cast-function-type)
