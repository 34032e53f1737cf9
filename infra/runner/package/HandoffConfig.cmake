# find_package(Handoff) gives the target Handoff::handoff, which opens released models and calls them:
#
#   find_package(Handoff REQUIRED)
#   target_link_libraries(serve PRIVATE Handoff::handoff)
#
# It is compiled with your program, against the torch that the releases were built with: the one in
# Handoff_TORCH (the folder that holds include/ and lib/), in CMAKE_PREFIX_PATH, or installed beside
# Handoff. 'handoff cpp --cmake' prints the options that say where both are.
#
# Torch's own package asks for the whole CUDA toolkit where the wheel is one for CUDA. Nothing here
# includes a CUDA header, so that what is linked is looked up by name instead.
if(TARGET Handoff::handoff)
  return()
endif()

find_path(Handoff_TORCH_INCLUDE torch/csrc/inductor/aoti_package/model_package_loader.h
  HINTS "${Handoff_TORCH}" ${CMAKE_PREFIX_PATH} "${CMAKE_CURRENT_LIST_DIR}/../../../../torch"
  PATH_SUFFIXES include ../../include)
foreach(_library torch torch_cpu c10)
  find_library(Handoff_LIB_${_library} ${_library}
    HINTS "${Handoff_TORCH_INCLUDE}/../lib" NO_DEFAULT_PATH)
  if(NOT Handoff_TORCH_INCLUDE OR NOT Handoff_LIB_${_library})
    set(Handoff_FOUND FALSE)
    set(Handoff_NOT_FOUND_MESSAGE
      "expected a torch with include/ and lib/, got none. Set Handoff_TORCH to its folder, or give cmake what 'handoff cpp --cmake' prints")
    return()
  endif()
endforeach()
find_package(Threads REQUIRED)

add_library(handoff STATIC "${CMAKE_CURRENT_LIST_DIR}/handoff.cpp")
add_library(Handoff::handoff ALIAS handoff)
# torch 2.15's headers need C++20; our own code is C++17.
target_compile_features(handoff PUBLIC cxx_std_20)
set_target_properties(handoff PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories(handoff PUBLIC "${CMAKE_CURRENT_LIST_DIR}/include")
target_include_directories(handoff SYSTEM PUBLIC
  "${Handoff_TORCH_INCLUDE}" "${Handoff_TORCH_INCLUDE}/torch/csrc/api/include")
# A package names libtorch.so itself and takes the one that is loaded.
target_link_options(handoff INTERFACE -Wl,--no-as-needed)
target_link_libraries(handoff PUBLIC
  ${Handoff_LIB_torch} ${Handoff_LIB_torch_cpu} ${Handoff_LIB_c10} Threads::Threads ${CMAKE_DL_LIBS})
