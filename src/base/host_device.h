// PERIGEE_HD marks a function that compiles for the host and for CUDA devices alike.
#pragma once

#ifdef __CUDACC__
#define PERIGEE_HD __host__ __device__
#else
#define PERIGEE_HD
#endif
