"""SigmaTrace: every RDMA operation of a distributed program, in one picture."""
