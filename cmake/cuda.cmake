# The CUDA part builds when nvcc is found and is skipped with one line otherwise.
set(PERIGEE_HAVE_CUDA OFF)
if(NOT PERIGEE_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  set(CMAKE_CUDA_HOST_COMPILER g++)
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  set(CMAKE_MESSAGE_LOG_LEVEL WARNING)  # the lines below say what was found
  check_language(CUDA)
  unset(CMAKE_MESSAGE_LOG_LEVEL)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc has C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    endif()
    set(PERIGEE_HAVE_CUDA ON)
    message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} for sm_${PERIGEE_CUDA_ARCH}")
  elseif(PERIGEE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "PERIGEE_CUDA=ON, but nvcc was not found; put it on PATH or set PERIGEE_CUDA=OFF")
  else()
    message(STATUS "CUDA: nvcc not found, the CUDA part is skipped")
  endif()
endif()

# perigee_cuda_options(TARGET): how the .cu files of a target compile. The numerics contract needs -fmad=false (fused
# operations are written); the headers of src/formats call constexpr functions of the standard library on the device.
# PERIGEE_SM90 says whether Hopper's own instructions (wgmma, the copy engine) may be used.
function(perigee_cuda_options target)
  set(flags -gencode=arch=compute_${PERIGEE_CUDA_ARCH},code=sm_${PERIGEE_CUDA_ARCH}
            -DPERIGEE_SM90=$<STREQUAL:${PERIGEE_CUDA_ARCH},90a> -fmad=false --expt-relaxed-constexpr -Xcompiler=-Wall,-Wextra,-ffp-contract=off)
  if(PERIGEE_WERROR)
    list(APPEND flags -Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${flags}>")
endfunction()
