# One CMake target per folder. Sources are globbed, so a new file needs no edit here.

# lodestone_library(FOLDER DEPS...): lodestone_FOLDER from every .cc below FOLDER except main.cc and
# what needs CUDA (cmake/LodestoneCuda.cmake).
function(lodestone_library folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$|/nccl/|cuda_calls\\.cc$")
  if(sources)
    add_library(lodestone_${folder} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(lodestone_${folder} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(lodestone_${folder} ${scope} ${PROJECT_SOURCE_DIR})
  target_link_libraries(lodestone_${folder} ${scope} ${ARGN})
endfunction()

# The kernels: reference ops, and the CPU ops whose SIMD files are compiled once per instruction set.
# A file kernels/cpu/*_simd.cc is built twice, as namespace avx2 and as namespace avx512.
function(lodestone_kernels folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "_simd\\.cc$|cuda_ops\\.cc$")
  file(GLOB simd_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/cpu/*_simd.cc)
  set(objects)
  if(simd_sources)
    set(flags_avx2 -mavx2 -mfma -mf16c)
    set(flags_avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mprefer-vector-width=512)
    foreach(isa avx2 avx512)
      add_library(lodestone_kernels_${isa} OBJECT ${simd_sources})
      target_compile_options(lodestone_kernels_${isa} PRIVATE -O3 ${flags_${isa}})
      # Marking the scope of each vector would keep all of them out of registers: a matrix product takes
      # 45 times as long, for errors that one scope a loop does not make. The ends of arrays stay watched.
      if(LODESTONE_SANITIZE MATCHES "address")
        target_compile_options(lodestone_kernels_${isa} PRIVATE -fno-sanitize-address-use-after-scope)
      endif()
      target_compile_definitions(lodestone_kernels_${isa} PRIVATE LODESTONE_SIMD_NAMESPACE=${isa})
      target_include_directories(lodestone_kernels_${isa} PRIVATE ${PROJECT_SOURCE_DIR})
      target_link_libraries(lodestone_kernels_${isa} PRIVATE ${ARGN})
      list(APPEND objects $<TARGET_OBJECTS:lodestone_kernels_${isa}>)
    endforeach()
  endif()
  add_library(lodestone_${folder} STATIC ${sources} ${objects} ${PROJECT_SOURCE_DIR}/cmake/empty.cc)
  target_include_directories(lodestone_${folder} PUBLIC ${PROJECT_SOURCE_DIR})
  target_link_libraries(lodestone_${folder} PUBLIC ${ARGN})
endfunction()

# Messages and services of proto/, generated into the build folder, and proto/*.cc, which converts
# them. Include the generated ones as "proto/lodestone/v1/worker.grpc.pb.h".
function(lodestone_proto folder)
  file(GLOB_RECURSE protos CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.proto)
  set(gen ${CMAKE_BINARY_DIR}/gen)
  file(MAKE_DIRECTORY ${gen})
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
  add_library(lodestone_proto STATIC ${protos} ${sources})
  target_link_libraries(lodestone_proto PUBLIC lodestone_base protobuf::libprotobuf gRPC::grpc++)
  target_include_directories(lodestone_proto SYSTEM PUBLIC ${gen})
  target_compile_options(lodestone_proto PRIVATE -w)
  if(protos)
    protobuf_generate(TARGET lodestone_proto LANGUAGE cpp IMPORT_DIRS ${PROJECT_SOURCE_DIR} PROTOC_OUT_DIR ${gen})
    protobuf_generate(TARGET lodestone_proto LANGUAGE grpc IMPORT_DIRS ${PROJECT_SOURCE_DIR} PROTOC_OUT_DIR ${gen}
      GENERATE_EXTENSIONS .grpc.pb.h .grpc.pb.cc PLUGIN "protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin>")
  endif()
endfunction()

# lodestone_binary(FOLDER NAME DEPS...): the library of FOLDER and, from its main.cc, the binary NAME.
function(lodestone_binary folder name)
  lodestone_library(${folder} ${ARGN})
  if(EXISTS ${PROJECT_SOURCE_DIR}/${folder}/main.cc)
    add_executable(${name} ${PROJECT_SOURCE_DIR}/${folder}/main.cc)
    target_link_libraries(${name} PRIVATE lodestone_${folder})
  endif()
endfunction()

# Each bench/X_bench.cc is a binary lodestone-bench-X (underscores become dashes).
function(lodestone_bench folder)
  file(GLOB benches CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*_bench.cc)
  foreach(source ${benches})
    get_filename_component(stem ${source} NAME_WE)
    string(REGEX REPLACE "_bench$" "" stem ${stem})
    string(REPLACE "_" "-" stem ${stem})
    add_executable(lodestone-bench-${stem} ${source})
    target_link_libraries(lodestone-bench-${stem} PRIVATE lodestone_engine lodestone_kvtransfer Boost::headers Boost::json)
  endforeach()
endfunction()

# lodestone_tests(FOLDER LABEL DEPS...): one test binary from tests/FOLDER/*_test.cc, run from the
# source root; every gtest case is one ctest entry with LABEL.
function(lodestone_tests folder label)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/${folder}/*.cc)
  # The thread sanitizer sees only half of what goes through the distribution's gRPC, which was not
  # built for it, and reports races that are none.
  if(LODESTONE_SANITIZE MATCHES "thread")
    foreach(source ${sources})
      file(STRINGS ${source} through_grpc REGEX "grpc|router_fixture\\.h|decode/worker_pair\\.h" LIMIT_COUNT 1)
      if(through_grpc)
        list(REMOVE_ITEM sources ${source})
      endif()
    endforeach()
  endif()
  if(NOT sources)
    return()
  endif()
  set(name ${folder}_tests)
  add_executable(${name} ${sources})
  target_link_libraries(${name} PRIVATE ${ARGN} lodestone_testing GTest::gmock GTest::gtest_main)
  # Tests spend their time in the libraries; a lower level builds them in half the time.
  target_compile_options(${name} PRIVATE -O1 -g0)
  # GCC 12 reports std::function inside std::regex as uninitialized under sanitizers (its bug 105562).
  if(LODESTONE_SANITIZE)
    target_compile_options(${name} PRIVATE -Wno-maybe-uninitialized)
  endif()
  target_compile_definitions(${name} PRIVATE LODESTONE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                             LODESTONE_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}")
  add_test(NAME ${folder} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${folder} PROPERTIES LABELS ${label} TIMEOUT 900)
endfunction()

# lodestone_failpoints(TARGET FOLDER...): TARGET, a binary for tests, gets the failpoints of these
# folders also in builds whose libraries have none. The sources that name one are compiled again with
# them in; as a linker has these objects already, it leaves those members of the libraries alone. A
# file that names its first failpoint is seen at the next run of cmake.
function(lodestone_failpoints target)
  if(LODESTONE_FAILPOINTS)
    return()
  endif()
  foreach(folder ${ARGN})
    set(objects lodestone_${folder}_failpoints)
    if(NOT TARGET ${objects})
      file(GLOB_RECURSE candidates CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.cc)
      set(sources)
      foreach(candidate ${candidates})
        file(STRINGS ${candidate} uses REGEX "FAILPOINT\\(|kFailpointsEnabled")
        if(uses)
          list(APPEND sources ${candidate})
        endif()
      endforeach()
      add_library(${objects} OBJECT ${sources})
      target_compile_definitions(${objects} PRIVATE LODESTONE_FAILPOINTS_ENABLED)
      target_link_libraries(${objects} PRIVATE lodestone_${folder})
    endif()
    target_link_libraries(${target} PRIVATE ${objects})
  endforeach()
  target_compile_definitions(${target} PRIVATE LODESTONE_FAILPOINTS_ENABLED)
endfunction()
