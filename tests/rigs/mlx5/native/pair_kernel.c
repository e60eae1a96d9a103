#include "pair_kernel.h"
