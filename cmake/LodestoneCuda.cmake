# The CUDA kernels. Built where nvcc is found; everything else builds without it.
#
# nvcc is called by name and not as a CMake language: CMake 3.25 drops C++20 for CUDA, and the host
# warnings and sanitizers of other targets are not nvcc's.
find_program(LODESTONE_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin)

# LODESTONE_CUDA_ROOT: the toolkit of nvcc, asked of nvcc itself, since what is on the PATH may be a
# link or a script that calls the real one. Empty without nvcc.
set(LODESTONE_CUDA_ROOT "")
if(LODESTONE_NVCC)
  execute_process(COMMAND ${LODESTONE_NVCC} --dryrun -x cu -c /dev/null -o ${CMAKE_BINARY_DIR}/none.o
                  OUTPUT_VARIABLE nvcc_says ERROR_VARIABLE nvcc_says)
  if(nvcc_says MATCHES "TOP=([^\r\n]+)")
    get_filename_component(LODESTONE_CUDA_ROOT "${CMAKE_MATCH_1}" REALPATH)
  endif()
  find_library(LODESTONE_CUDART cudart_static HINTS ${LODESTONE_CUDA_ROOT} PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib)
  find_path(LODESTONE_CUDA_INCLUDE cuda_runtime.h HINTS ${LODESTONE_CUDA_ROOT} PATH_SUFFIXES include targets/x86_64-linux/include)
endif()
if(LODESTONE_CUDART AND LODESTONE_CUDA_INCLUDE)
  set(lodestone_cuda_found ON)
  message(STATUS "Found CUDA: ${LODESTONE_CUDA_ROOT}")
else()
  set(lodestone_cuda_found OFF)
  message(STATUS "CUDA kernels are left out: nvcc is '${LODESTONE_NVCC}', its runtime library '${LODESTONE_CUDART}', "
                 "its headers '${LODESTONE_CUDA_INCLUDE}'")
endif()
if(lodestone_cuda_found AND NOT LODESTONE_SANITIZE)
  set(lodestone_cuda_default ON)
else()
  set(lodestone_cuda_default OFF)
endif()
option(LODESTONE_CUDA "Build the CUDA kernels" ${lodestone_cuda_default})
set(LODESTONE_CUDA_ARCHITECTURES "90a" CACHE STRING
  "Architectures to compile for, e.g. 90a;100a;120a. All but 90a run the portable kernels")

# lodestone_cuda_kernels(FOLDER): lodestone_kernels_cuda from every FOLDER/*.cu and the ops over them, or
# what stands in for the ops without CUDA.
function(lodestone_cuda_kernels folder)
  if(NOT LODESTONE_CUDA)
    target_sources(lodestone_kernels PRIVATE ${PROJECT_SOURCE_DIR}/${folder}/no_cuda_ops.cc)
    return()
  endif()
  if(NOT lodestone_cuda_found)
    message(FATAL_ERROR "LODESTONE_CUDA is ON, but the CUDA toolkit was not found (see above)")
  endif()

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
  add_library(lodestone_kernels_cuda STATIC ${objects} ${PROJECT_SOURCE_DIR}/${folder}/cuda_ops.cc)
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  target_include_directories(lodestone_kernels_cuda PUBLIC ${PROJECT_SOURCE_DIR})
  target_include_directories(lodestone_kernels_cuda SYSTEM PUBLIC ${LODESTONE_CUDA_INCLUDE})
  target_link_libraries(lodestone_kernels_cuda PUBLIC lodestone_kernels ${LODESTONE_CUDART} Threads::Threads rt ${CMAKE_DL_LIBS})
endfunction()

# lodestone_cuda_runtime(FOLDER): the calls of the CUDA runtime, or what stands in for them without CUDA.
function(lodestone_cuda_runtime folder)
  if(LODESTONE_CUDA)
    target_sources(lodestone_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/${folder}/cuda_calls.cc)
    target_include_directories(lodestone_${folder} SYSTEM PRIVATE ${LODESTONE_CUDA_INCLUDE})
    target_link_libraries(lodestone_${folder} PUBLIC ${LODESTONE_CUDART} rt ${CMAKE_DL_LIBS})
  else()
    target_sources(lodestone_${folder} PRIVATE ${PROJECT_SOURCE_DIR}/${folder}/no_cuda_calls.cc)
  endif()
endfunction()

# lodestone_nccl(FOLDER DEPS...): lodestone_nccl from every FOLDER/*.cc, or what stands in for it without
# CUDA. NCCL itself is loaded at run time.
function(lodestone_nccl folder)
  if(NOT LODESTONE_CUDA)
    add_library(lodestone_nccl STATIC ${PROJECT_SOURCE_DIR}/${folder}/no_nccl.cc)
    target_link_libraries(lodestone_nccl PUBLIC ${ARGN})
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/no_nccl\\.cc$")
  add_library(lodestone_nccl STATIC ${sources})
  target_include_directories(lodestone_nccl SYSTEM PUBLIC ${LODESTONE_CUDA_INCLUDE})
  target_link_libraries(lodestone_nccl PUBLIC ${ARGN} ${LODESTONE_CUDART} Threads::Threads rt ${CMAKE_DL_LIBS})
endfunction()

# lodestone_gpu_benches(FOLDER): the target gpu_benches, bin/X_bench from every FOLDER/X_bench.cu. Not part of a
# plain build.
function(lodestone_gpu_benches folder)
  if(NOT LODESTONE_CUDA)
    return()
  endif()
  set(flags -std=c++20 -O3 --expt-relaxed-constexpr -I${PROJECT_SOURCE_DIR})
  foreach(arch ${LODESTONE_CUDA_ARCHITECTURES})
    list(APPEND flags -gencode=arch=compute_${arch},code=sm_${arch})
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*_bench.cu)
  set(programs)
  foreach(source ${sources})
    get_filename_component(stem ${source} NAME_WE)
    set(object ${CMAKE_BINARY_DIR}/cuda/${stem}.cu.o)
    set(program ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${stem})
    add_custom_command(
      OUTPUT ${program}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cuda ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
      COMMAND ${LODESTONE_NVCC} ${flags} -MD -MF ${object}.d -c ${source} -o ${object}
      COMMAND ${LODESTONE_NVCC} ${object} $<TARGET_FILE:lodestone_kernels_cuda> $<TARGET_FILE:lodestone_kernels>
              $<TARGET_FILE:lodestone_runtime> $<TARGET_FILE:lodestone_base> -lcublas -lcublasLt -o ${program}
      DEPENDS ${source} lodestone_kernels_cuda
      DEPFILE ${object}.d
      COMMENT "Building ${folder}/${stem}"
      VERBATIM)
    list(APPEND programs ${program})
  endforeach()
  add_custom_target(gpu_benches DEPENDS ${programs})
endfunction()

# lodestone_gpu_tests(FOLDER): gpu_tests, from every FOLDER/**.cc and, with the CUDA ops in the place of the
# CPU's, the op tests of tests/kernels. Skipped where there is no GPU. Carried to machines that have
# one (FOLDER/pack), so files are named from the working directory, the source root.
function(lodestone_gpu_tests folder)
  if(NOT LODESTONE_CUDA)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc ${PROJECT_SOURCE_DIR}/tests/testing/*.cc)
  foreach(op norm_rope_cpu attention_rows_cpu hyper_connection_cpu compress_kv_cpu index_topk_cpu
             index_topk_hostile linear_cpu sparse_attention_cpu moe_cpu pack_rows_cpu poisoned_rows_cpu)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/kernels/${op}_test.cc)
  endforeach()
  add_executable(gpu_tests ${sources} ${PROJECT_SOURCE_DIR}/tests/kernels/op_test_support.cc)
  target_link_libraries(gpu_tests PRIVATE lodestone_engine lodestone_kernels_cuda GTest::gmock GTest::gtest_main)
  target_compile_options(gpu_tests PRIVATE -O1 -g0)
  target_compile_definitions(gpu_tests PRIVATE LODESTONE_SOURCE_DIR=".")
  add_test(NAME gpu COMMAND gpu_tests WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(gpu PROPERTIES LABELS gpu TIMEOUT 900)
endfunction()

# lodestone_two_gpu_tests(FOLDER): two_gpu_tests, the real binaries with caches over NCCL, on two GPUs of this
# machine, and as two hosts on one. Carried as gpu_tests are; the binaries lie beside it.
function(lodestone_two_gpu_tests folder)
  if(NOT LODESTONE_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  foreach(helper running_cluster reconcile streams)
    list(APPEND sources ${PROJECT_SOURCE_DIR}/tests/cluster/${helper}.cc)
  endforeach()
  add_executable(two_gpu_tests ${sources})
  target_link_libraries(two_gpu_tests PRIVATE lodestone_cli lodestone_testing GTest::gmock GTest::gtest_main)
  target_compile_options(two_gpu_tests PRIVATE -O1 -g0)
  target_compile_definitions(two_gpu_tests PRIVATE LODESTONE_SOURCE_DIR="." LODESTONE_BIN_DIR=".")
  add_dependencies(two_gpu_tests lodestone lodestone-prefill lodestone-decode lodestone-router)
  add_test(NAME two_gpus COMMAND two_gpu_tests WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(two_gpus PROPERTIES LABELS multi_gpu TIMEOUT 900)
endfunction()
