# The CUDA kernels. Built where nvcc is found; everything else builds without it.
#
# nvcc is called by name and not as a CMake language: CMake 3.25 drops C++20 for CUDA, and the host
# warnings and sanitizers of other targets are not nvcc's.
find_program(LODESTONE_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)
if(LODESTONE_NVCC AND NOT LODESTONE_SANITIZE)
  set(lodestone_cuda_default ON)
else()
  set(lodestone_cuda_default OFF)
endif()
option(LODESTONE_CUDA "Build the CUDA kernels" ${lodestone_cuda_default})
set(LODESTONE_CUDA_ARCHITECTURES "90a" CACHE STRING
  "Architectures to compile for, e.g. 90a;100a;120a. All but 90a run the portable kernels")

# lodestone_cuda_kernels(FOLDER): lodestone_kernels_cuda from every FOLDER/*.cu.
function(lodestone_cuda_kernels folder)
  if(NOT LODESTONE_CUDA)
    return()
  endif()
  if(NOT LODESTONE_NVCC)
    message(FATAL_ERROR "LODESTONE_CUDA is ON, but nvcc was not found")
  endif()
  get_filename_component(toolkit ${LODESTONE_NVCC} REALPATH)
  get_filename_component(toolkit ${toolkit} DIRECTORY)
  get_filename_component(toolkit ${toolkit} DIRECTORY)
  find_library(LODESTONE_CUDART cudart_static HINTS ${toolkit}/lib64 ${toolkit}/targets/x86_64-linux/lib REQUIRED)

  set(flags -std=c++20 -O3 -lineinfo --expt-relaxed-constexpr -Xcompiler -fPIC,-Wall,-Wextra
            -I${PROJECT_SOURCE_DIR})
  foreach(arch ${LODESTONE_CUDA_ARCHITECTURES})
    list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cu)
  set(objects)
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${stem}.cu.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda
      COMMAND ${CCACHE_PROGRAM} ${LODESTONE_NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object ${folder}/${stem}.cu"
      VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_library(lodestone_kernels_cuda STATIC ${objects} ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_include_directories(lodestone_kernels_cuda PUBLIC ${PROJECT_SOURCE_DIR})
  target_include_directories(lodestone_kernels_cuda SYSTEM PUBLIC ${toolkit}/include)
  target_link_libraries(lodestone_kernels_cuda PUBLIC lodestone_kernels ${LODESTONE_CUDART} Threads::Threads rt ${CMAKE_DL_LIBS})
endfunction()
