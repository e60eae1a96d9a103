#include "bfs_kernel.h"
