# cmake -D IN=kernels.ptx -D OUT=source.cc -P EmbedText.cmake: a source that has the text as muster::train::kKernelImage.
# Without IN that is null.
if(IN)
  file(READ ${IN} text)
  set(image "R\"PTX(${text})PTX\"")
else()
  set(image nullptr)
endif()
file(WRITE ${OUT} "#include \"train/kernel_image.h\"

namespace muster::train {

const char* const kKernelImage = ${image};

}  // namespace muster::train
")
