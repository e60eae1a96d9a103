"""An emulated ConnectX in user space, and a stand-in for the CUDA driver: see README.md."""
