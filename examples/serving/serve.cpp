// serve.cpp: serve FOLDER KEY NAME
#include <handoff/model.h>

#include <iostream>

int main(int count, char** arguments) try {
  if (count != 4) {
    std::cerr << "expected serve FOLDER KEY NAME\n";
    return 64;
  }
  handoff::Trust trust;
  trust.keys = {arguments[2]};  // one of these public keys must have signed the release
  trust.name = arguments[3];    // another model's release is validly signed too
  handoff::OpenOptions options;
  options.runners = 8;  // calls that run at the same time
  const handoff::Release release = handoff::read_release(arguments[1], trust);
  handoff::Model model(release, options);

  // Inputs, and the original model's outputs.
  const auto examples = handoff::read_tensors(release.folder + "/examples.safetensors");
  handoff::Tensors inputs;
  for (const auto& spec : release.signature.inputs) {
    inputs.push_back(examples.at("0/inputs/" + spec.name));
  }
  const handoff::Tensors outputs = model.call(inputs);  // from any thread
  std::cout << release.model << " version " << release.version << ": " << outputs[0].sizes() << "\n";
} catch (const std::exception& error) {  // handoff::Refused: what was expected, what was found
  std::cerr << error.what() << "\n";
  return 1;
}
