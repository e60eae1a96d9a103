"""An emulated ConnectX in user space, and a stand-in for the CUDA driver.

Environment of programs that run on it (`emulated.Emulated.environment` sets the first three):

* ``LD_LIBRARY_PATH``: the folder of libibverbs.so.1 and libmlx5.so.1, and without a GPU that of the
  stand-in's libcuda.so.1. With a GPU, libmlx5emu_cuda.so is preloaded, after a tracer's library.
* ``MLX5EMU_OUT``: folder of ``nic-PID.json``, the NIC's counts, written at exit.
* ``MLX5EMU_LOG=1``: also ``wqes-PID.txt``, a line for each WQE that was executed.
* ``MLX5EMU_FABRIC``: a file, new for each run, that joins the NICs of several processes; their LIDs
  are 1, 2, ... in the order in which they start.
* ``MLX5EMU_LINK=ethernet``: LIDs are 0, and nodes are found by their GIDs.
* ``MLX5EMU_RECOVER_US``: after how long the doorbell record of a queue pair that shares its
  register is taken for a doorbell that was overwritten (20000; 0: never).
* ``MLX5EMU_REREAD=0``: a doorbell that repeats the last index does nothing. Else the doorbell
  record is read, and what it announces beyond is executed, too.
* ``MLX5EMU_DELAY_NS``: pause before each round of the engine; ``MLX5EMU_STALL_US`` and
  ``MLX5EMU_STALL_EACH_US``: it stands still, for how long and how often.
* ``MLX5EMU_SPIN=1``, ``MLX5EMU_CPU``: the engine never sleeps; its processor.
* ``MLX5EMU_COPIES=1``: the stand-in's memory is reached by its copies, as a GPU's is.
* ``FAKE_CUDA_MMIO=0``: registers are ordinary memory to the stand-in, as to a real driver.
"""
