# Language, warnings, sanitizers and output folders: the same for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# Address-sanitizer binaries that mold links do not start on Debian 12 (a relocation is refused).
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM AND NOT LODESTONE_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

# Results must not depend on how the compiler fuses multiply and add: kernels ask for FMA by name.
add_compile_options(-Wall -Wextra -Wshadow -Werror -ffp-contract=off -fstack-protector-strong)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  add_compile_options(-Wthread-safety)
endif()

if(LODESTONE_SANITIZE)
  add_compile_options(-fsanitize=${LODESTONE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined)
  add_link_options(-fsanitize=${LODESTONE_SANITIZE})
  # The thread sanitizer knows no fences; those of Asio stand beside locks that it does know.
  if(LODESTONE_SANITIZE MATCHES "thread")
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
elseif(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_definitions(_FORTIFY_SOURCE=2)
endif()

# What base/build_info.h reports.
set_source_files_properties(base/build_info.cc PROPERTIES COMPILE_DEFINITIONS
  "LODESTONE_VERSION=\"${PROJECT_VERSION}\";LODESTONE_BUILD_TYPE=\"${CMAKE_BUILD_TYPE}\"")
# Log records name their source file from the root.
set_source_files_properties(base/logging.cc PROPERTIES COMPILE_DEFINITIONS
  "LODESTONE_SOURCE_ROOT=\"${PROJECT_SOURCE_DIR}/\"")

# Named faults that tests inject (base/failpoint.h).
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  option(LODESTONE_FAILPOINTS "Compile the failpoints in" OFF)
else()
  option(LODESTONE_FAILPOINTS "Compile the failpoints in" ON)
endif()
if(LODESTONE_FAILPOINTS)
  add_compile_definitions(LODESTONE_FAILPOINTS_ENABLED)
endif()
