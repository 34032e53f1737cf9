// `answer`: makes the calls that another process asks for, several at the same time.
#include <iostream>
#include <mutex>

#include "commands.h"
#include "json.h"

namespace handoff {
namespace {

// So many calls are made at once; each line is one of them.
constexpr std::size_t kAtOnce = 4;

std::vector<std::int64_t> integers(const Json& list) {
  std::vector<std::int64_t> found;
  for (const Json& one : list.items()) found.push_back(one.integer());
  return found;
}

// The inputs of a call: what each lies in, as the file holds it, seen as the request says.
Tensors inputs_of(const Json& request, const std::map<std::string, at::Tensor>& held) {
  Tensors inputs;
  for (const Json& view : request.at("inputs").items()) {
    const at::Tensor& flat = held.at(std::to_string(inputs.size()));
    inputs.push_back(flat.as_strided(integers(view.at("shape")), integers(view.at("strides")),
                                     view.at("offset").integer()));
  }
  return inputs;
}

// Makes one call, and writes its outputs and what it leaves of its inputs.
void answer_one(Model& model, const Json& request) {
  std::map<std::string, at::Tensor> held = read_tensors(request.at("from").string());
  const Tensors got = model.call(inputs_of(request, held));
  std::map<std::string, at::Tensor> written;
  for (const auto& [name, flat] : held) written["left/" + name] = flat;
  for (std::size_t place = 0; place < got.size(); ++place) {
    written["outputs/" + std::to_string(place)] = got[place];
  }
  write_tensors(request.at("to").string(), written);
}

}  // namespace

int answer(const Options& options) {
  const Release release = read_release(options.folder, options.trust);
  OpenOptions open = options.open;
  open.runners = kAtOnce;
  Model model(release, open);
  print_line("{\"event\":\"opened\",\"target\":" + quote(model.target().slug) + "}");
  std::mutex reading;
  std::mutex telling;
  in_threads(kAtOnce, options.intra_op, [&](std::size_t) {
    for (std::string line;;) {
      {
        const std::lock_guard<std::mutex> held(reading);
        if (!std::getline(std::cin, line)) return;
      }
      const Json request = Json::parse(line);
      std::string error;
      try {
        answer_one(model, request);
      } catch (const std::exception& failed) {
        const std::string text = failed.what();
        error = text.empty() ? "an error without a word" : text.substr(0, 4000);
      }
      const std::lock_guard<std::mutex> held(telling);
      print_line("{\"event\":\"answered\",\"to\":" + quote(request.at("to").string()) +
                 ",\"error\":" + quote(error) + "}");
    }
  });
  return 0;
}

}  // namespace handoff
