"""An emulated ConnectX, and a stand-in for the CUDA driver."""
