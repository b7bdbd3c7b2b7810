// A handler in C++ without exceptions, and its test.
#include "ordain_testing.h"

#include <cassert>
#include <cstdio>
#include <string>
#include <vector>

ORDAIN_HANDLER(event, state) {
  ordain_json data = ordain_json_parse(event->data);
  std::vector<std::string> names;
  for (ordain_json item = ordain_json_first(data); item.at; item = ordain_json_next(item)) {
    ordain_bytes name = ordain_json_text(item, nullptr);
    names.emplace_back(name.ptr, name.len);
  }
  if (ordain_json_error(data)) return ordain_reject_data(event, data);

  ordain_writer out = {};
  ordain_write_array(&out, nullptr);
  if (state) ordain_write_json(&out, nullptr, *state);
  for (const std::string &name : names) ordain_write_text(&out, nullptr, name.c_str());
  ordain_write_end(&out);
  ordain_put_bytes(ordain_written(&out));
  return ORDAIN_OK;
}

int main() {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_event(runner, "names", "[\"a\"]");
  assert(ordain_runner_event(runner, "names", "[\"b\",\"c\"]")->result == ORDAIN_OK);
  assert(std::string(ordain_runner_state(runner)) == "[[\"a\"],\"b\",\"c\"]");
  assert(ordain_runner_event(runner, "names", "[1]")->result == ORDAIN_REJECT);
  ordain_runner_free(runner);
  std::puts("all tests passed");
}
