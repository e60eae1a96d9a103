# The layers mlx5dv and cuda: one LD_PRELOAD shim, because a doorbell register comes from the one
# and is handed to the GPU by the other. CUDA's functions are looked up at run time: no header of
# CUDA is needed to build.
file(GLOB ST_GPU_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.c)
add_library(sigmatrace_gpu SHARED ${ST_GPU_SOURCES})
target_include_directories(sigmatrace_gpu PRIVATE ${gpu_INCLUDE})
target_link_libraries(sigmatrace_gpu PRIVATE sigmatrace_core Threads::Threads ${CMAKE_DL_LIBS})
# The wrappers carry libmlx5's own version nodes.
set(ST_GPU_MAP ${CMAKE_CURRENT_LIST_DIR}/gpu.map)
# Its threads run until the process ends: it must stay when it is closed.
target_link_options(sigmatrace_gpu PRIVATE -Wl,--version-script=${ST_GPU_MAP} -Wl,-z,nodelete
  -Wl,--no-undefined)
set_target_properties(sigmatrace_gpu PROPERTIES LINK_DEPENDS ${ST_GPU_MAP})
install(TARGETS sigmatrace_gpu LIBRARY DESTINATION ${ST_LIB_DIR})
