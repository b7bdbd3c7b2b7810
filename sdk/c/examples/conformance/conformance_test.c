/*
 * Tests of the actions that a native program can check. The test of the components checks the other actions too.
 */
#include "ordain_testing.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const ordain_message *only_message(const ordain_outcome *outcome) {
  assert(outcome->result == ORDAIN_OK && outcome->message_count == 1);
  return outcome->messages;
}

static void echo_keeps_all_bytes(ordain_runner *runner) {
  char bytes[256];
  for (int i = 0; i < 256; i++) bytes[i] = (char)i;
  const ordain_header headers[] = {{ordain_bytes_from("z"), ordain_bytes_from("☃")},
                                   {ordain_bytes_from("a"), ordain_bytes_from("")}};
  ordain_event event = ordain_runner_next(runner, "echo", "");
  event.content_type = ordain_bytes_from("application/x-test");
  event.headers = (ordain_headers){headers, 2};
  event.data = (ordain_bytes){bytes, sizeof bytes};
  const ordain_message *message = only_message(ordain_runner_send(runner, &event));
  assert(ordain_bytes_equal(message->content_type, "application/x-test"));
  assert(message->data.len == 256 && memcmp(message->data.ptr, bytes, 256) == 0);
  assert(message->headers.len == 2);
  assert(ordain_bytes_equal(message->headers.ptr[0].name, "z"));
  assert(ordain_bytes_equal(message->headers.ptr[0].value, "☃"));
  assert(ordain_bytes_equal(message->headers.ptr[1].name, "a"));
}

static void describe_names_every_field(ordain_runner *runner) {
  ordain_event event = ordain_runner_next(runner, "describe", "");
  event.key = ordain_bytes_from("k\"☃");
  event.sequence = UINT64_MAX - 1;
  event.time_ms.has_value = false;
  const ordain_message *message = only_message(ordain_runner_send(runner, &event));
  const char *expected = "{\"stream\":\"test\",\"key\":\"k\\\"☃\",\"sequence\":18446744073709551614,";
  assert(strncmp(message->data.ptr, expected, strlen(expected)) == 0);
  expected = "\"time_ms\":null,\"content_type\":\"application/json\",\"end_of_sequence\":false,\"headers\":[]}";
  assert(strstr(message->data.ptr, expected));
}

static void state_is_stored_and_deleted(ordain_runner *runner) {
  assert(strcmp(ordain_runner_event(runner, "get", "")->reason, "no state") == 0);
  ordain_runner_event(runner, "put", "abc");
  assert(ordain_bytes_equal(only_message(ordain_runner_event(runner, "get", ""))->data, "abc"));
  assert(ordain_runner_event(runner, "add", "{\"amount\":1}")->result == ORDAIN_FAULT);
  ordain_runner_event(runner, "delete", "");
  assert(!ordain_runner_state(runner));
}

static void numbers_are_exact(ordain_runner *runner) {
  ordain_runner_event(runner, "add", "{\"amount\":9007199254740992}");
  const ordain_outcome *outcome = ordain_runner_event(runner, "add", "{\"amount\":1}");
  assert(ordain_bytes_equal(only_message(outcome)->data, "{\"total\":9007199254740993}"));
  assert(ordain_runner_event(runner, "add", "{\"amount\":\"1\"}")->result == ORDAIN_REJECT);
  outcome = ordain_runner_event(runner, "exact", "{\"n\":18446744073709551615}");
  assert(ordain_bytes_equal(only_message(outcome)->data, "{\"n\":18446744073709551615}"));
}

static void failures_have_their_reasons(ordain_runner *runner) {
  assert(strcmp(ordain_runner_event(runner, "reject", "")->reason, "rejected on request ☃") == 0);
  const ordain_outcome *retry = ordain_runner_event(runner, "retry", "");
  assert(retry->result == ORDAIN_RETRY && retry->retry_after_ms.value == 20);
  const ordain_outcome *fault = ordain_runner_event(runner, "fault", "");
  assert(fault->result == ORDAIN_FAULT && strstr(fault->reason, "failed on request ☃\n    at fail ("));
  assert(strcmp(ordain_runner_event(runner, "nonsense", "")->reason, "unknown type nonsense") == 0);
}

static void messages_have_keys_and_ends(ordain_runner *runner) {
  const ordain_outcome *many = ordain_runner_event(runner, "many", "{\"messages\":3}");
  assert(many->message_count == 3 && ordain_bytes_equal(many->messages[2].key.value, "key/2"));
  ordain_event event = ordain_runner_next(runner, "end", "");
  event.end_of_sequence = true;
  assert(only_message(ordain_runner_send(runner, &event))->end_of_sequence);
}

int main(void) {
  ordain_runner *runner = ordain_runner_new();
  echo_keeps_all_bytes(runner);
  state_is_stored_and_deleted(runner);
  numbers_are_exact(runner);
  failures_have_their_reasons(runner);
  messages_have_keys_and_ends(runner);
  ordain_runner_free(runner);
  runner = ordain_runner_new();
  describe_names_every_field(runner);
  ordain_runner_free(runner);
  puts("all tests passed");
}
