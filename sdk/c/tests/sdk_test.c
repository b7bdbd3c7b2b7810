/*
 * Tests of the SDK: the effect of a call, the runner, and the reader and writer of JSON. The type of an event selects
 * an action of the handler.
 */
#undef NDEBUG
#include "ordain_testing.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The check that the handler runs for an event of the type `check`, within a call and its memory. */
static void (*check)(void);

static ordain_result misuse(const char *type) {
  ordain_writer out = {0};
  if (strcmp(type, "forget-return") == 0 && ordain_reject("a reason") == ORDAIN_REJECT) return ORDAIN_OK;
  if (strcmp(type, "invent-result") == 0) return ORDAIN_RETRY;
  if (strcmp(type, "bad-sink") == 0) ordain_emit("\xff", "type", "{}");
  if (strcmp(type, "bad-key") == 0) ordain_message_key(ordain_emit("out", "type", "{}"), "%s", "a\xe2\x98");
  if (strcmp(type, "no-name") == 0) {
    ordain_write_object(&out, NULL);
    ordain_write_u64(&out, NULL, 1);
  }
  if (strcmp(type, "second-value") == 0) {
    ordain_write_u64(&out, NULL, 1);
    ordain_write_u64(&out, NULL, 2);
  }
  if (strcmp(type, "open") == 0) {
    ordain_write_array(&out, NULL);
    ordain_written(&out);
  }
  if (strcmp(type, "huge") == 0) ordain_alloc(SIZE_MAX);
  return ORDAIN_OK;
}

static ordain_result emit_all(const ordain_event *event) {
  for (int i = 0; i < 20; i++) {
    ordain_message *message = ordain_emit("out", "many", "{\"index\":%d}", i);
    for (int header = 0; header < i; header++) {
      ordain_message_header(message, ordain_bytes_from("name"), ordain_bytes_from(ordain_text("%d", header)));
    }
    ordain_message_key(message, "%s/%d", event->key.ptr, i);
    ordain_message_delay(message, 5);
    message->end_of_sequence = i == 19;
  }
  return ORDAIN_OK;
}

ORDAIN_HANDLER(event, state) {
  const char *type = event->type.ptr;
  if (strcmp(type, "check") == 0) {
    check();
    return ORDAIN_OK;
  }
  if (strcmp(type, "count") == 0) {
    int count = state ? atoi(state->ptr) : 0;
    ordain_put("%d", count + 1);
    return ORDAIN_OK;
  }
  if (strcmp(type, "swap") == 0) {
    if (state) ordain_emit_bytes("out", "old", "application/octet-stream", *state);
    ordain_put_bytes(event->data);
    return ORDAIN_OK;
  }
  if (strcmp(type, "undo") == 0) {
    ordain_put("1");
    ordain_keep();
    return ORDAIN_OK;
  }
  if (strcmp(type, "forget") == 0) {
    ordain_delete();
    return ORDAIN_OK;
  }
  if (strcmp(type, "last") == 0) {
    ordain_complete();
    return ORDAIN_OK;
  }
  if (strcmp(type, "random") == 0) {
    ordain_put("%d %d", rand(), rand());
    return ORDAIN_OK;
  }
  if (strcmp(type, "reject") == 0) return ordain_reject("the reason of %s%s", event->id.ptr, "\xff");
  if (strcmp(type, "retry") == 0) return ordain_retry("later");
  if (strcmp(type, "retry-after") == 0) return ordain_retry_after(7, "busy");
  if (strcmp(type, "fault") == 0) ordain_fault("a bug in \"%s\"", type);
  if (strcmp(type, "many") == 0) return emit_all(event);
  return misuse(type);
}

static void run_check(void (*function)(void)) {
  check = function;
  ordain_runner *runner = ordain_runner_new();
  assert(ordain_runner_event(runner, "check", "")->result == ORDAIN_OK);
  ordain_runner_free(runner);
}

/* The runner and the effect */

static void state_is_kept_replaced_and_deleted(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_event(runner, "count", "");
  const ordain_outcome *second = ordain_runner_event(runner, "count", "");
  assert(second->change == ORDAIN_PUT && ordain_bytes_equal(second->state, "2"));
  assert(ordain_runner_event(runner, "undo", "")->change == ORDAIN_KEPT);
  assert(strcmp(ordain_runner_state(runner), "2") == 0);
  assert(ordain_runner_event(runner, "forget", "")->change == ORDAIN_DELETED);
  assert(!ordain_runner_state(runner));
  ordain_runner_free(runner);
}

static void bytes_pass_unchanged(void) {
  char bytes[256];
  for (int i = 0; i < 256; i++) bytes[i] = (char)i;
  ordain_runner *runner = ordain_runner_new();
  ordain_event event = ordain_runner_next(runner, "swap", "");
  event.data = (ordain_bytes){bytes, sizeof bytes};
  ordain_runner_send(runner, &event);
  event = ordain_runner_next(runner, "swap", "");
  const ordain_outcome *outcome = ordain_runner_send(runner, &event);
  assert(outcome->messages[0].data.len == sizeof bytes);
  assert(memcmp(outcome->messages[0].data.ptr, bytes, sizeof bytes) == 0);
  assert(outcome->state.len == 0 && ordain_runner_state(runner));
  ordain_runner_free(runner);
}

static void messages_keep_their_order_and_fields(void) {
  ordain_runner *runner = ordain_runner_new();
  const ordain_outcome *outcome = ordain_runner_event(runner, "many", "");
  assert(outcome->message_count == 20);
  for (size_t i = 0; i < 20; i++) {
    const ordain_message *message = &outcome->messages[i];
    char expected[32];
    snprintf(expected, sizeof expected, "{\"index\":%zu}", i);
    assert(ordain_bytes_equal(message->data, expected));
    snprintf(expected, sizeof expected, "key/%zu", i);
    assert(message->key.has_value && ordain_bytes_equal(message->key.value, expected));
    assert(message->headers.len == i);
    for (size_t header = 0; header < i; header++) {
      assert((size_t)atoi(message->headers.ptr[header].value.ptr) == header);
    }
    assert(message->delay_ms.has_value && message->delay_ms.value == 5);
    assert(message->end_of_sequence == (i == 19));
  }
  ordain_runner_free(runner);
}

static void rejection_settles_and_retry_does_not(void) {
  ordain_runner *runner = ordain_runner_new();
  const ordain_outcome *outcome = ordain_runner_event(runner, "retry-after", "");
  assert(outcome->result == ORDAIN_RETRY && strcmp(outcome->reason, "busy") == 0);
  assert(outcome->retry_after_ms.has_value && outcome->retry_after_ms.value == 7);
  outcome = ordain_runner_event(runner, "retry", "");
  assert(outcome->result == ORDAIN_RETRY && !outcome->retry_after_ms.has_value);
  outcome = ordain_runner_event(runner, "reject", "");
  assert(outcome->result == ORDAIN_REJECT && strcmp(outcome->reason, "the reason of key/1\xEF\xBF\xBD") == 0);
  assert(ordain_runner_next(runner, "count", "").sequence == 2);
  ordain_runner_free(runner);
}

static void fault_has_its_message_and_its_place(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_set_state(runner, "1");
  const ordain_outcome *outcome = ordain_runner_event(runner, "fault", "");
  assert(outcome->result == ORDAIN_FAULT);
  assert(strstr(outcome->reason, "a bug in \"fault\"\n    at ordain_handle (") == outcome->reason);
  assert(strstr(outcome->reason, "sdk_test.c:"));
  assert(ordain_runner_next(runner, "count", "").sequence == 1);
  ordain_runner_event(runner, "count", "");
  assert(strcmp(ordain_runner_state(runner), "2") == 0);
  ordain_runner_free(runner);
}

static void misuse_is_a_fault(void) {
  static const char *const cases[][2] = {
      {"forget-return", "ordain_reject() but did not return"},
      {"invent-result", "the handler returned 2"},
      {"bad-sink", "the sink of a message"},
      {"bad-key", "the key of a message"},
      {"no-name", "needs a name"},
      {"second-value", "a second value"},
      {"open", "still open"},
      {"huge", "cannot allocate"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    ordain_runner *runner = ordain_runner_new();
    const ordain_outcome *outcome = ordain_runner_event(runner, cases[i][0], "");
    assert(outcome->result == ORDAIN_FAULT);
    assert(strstr(outcome->reason, cases[i][1]) && !strstr(outcome->reason, "\n    at "));
    ordain_runner_free(runner);
  }
}

static void key_ends_with_its_last_event(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_event event = ordain_runner_next(runner, "reject", "");
  event.end_of_sequence = true;
  ordain_runner_send(runner, &event);
  assert(ordain_runner_ended(runner));
  ordain_runner_free(runner);
  runner = ordain_runner_new();
  assert(ordain_runner_event(runner, "last", "")->complete && ordain_runner_ended(runner));
  ordain_runner_free(runner);
}

static void random_numbers_depend_on_the_event(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_event event = ordain_runner_next(runner, "random", "");
  ordain_runner_send(runner, &event);
  char first[64];
  snprintf(first, sizeof first, "%s", ordain_runner_state(runner));
  ordain_runner_send(runner, &event);
  assert(strcmp(ordain_runner_state(runner), first) == 0);
  event.sequence++;
  ordain_runner_send(runner, &event);
  assert(strcmp(ordain_runner_state(runner), first) != 0);
  ordain_runner_free(runner);
}

/* JSON */

static ordain_json parse(const char *text) { return ordain_json_parse(ordain_bytes_from(text)); }

static void check_valid_texts(void) {
  static const char *const texts[] = {
      "null",
      " true ",
      "\t\r\nfalse",
      "0",
      "-0",
      "1.5e-7",
      "1E+2",
      "\"\"",
      "[]",
      "[ ]",
      "{}",
      "{ }",
      "[1,[2],{\"a\":3}]",
      "{\"a\":{\"b\":[]},\"a\":1}",
      "\"\\u0000\\ud83d\\ude00\\n\"",
      "\"\xC3\xA9\xE2\x98\x83\xF0\x9F\x92\xA5\"",
      "",
  };
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) assert(!ordain_json_error(parse(texts[i])));
}

static void check_invalid_texts(void) {
  static const char *const cases[][2] = {
      {"nul", "expected a JSON value at line 1 column 1"},
      {" ", "expected a JSON value, found the end at line 1 column 2"},
      {"{\n  \"a\": 01\n}", "expected no digit after a leading zero at line 2 column 9"},
      {"1 2", "expected the end at line 1 column 3"},
      {"[1,]", "expected a JSON value at line 1 column 4"},
      {"[1 2]", "expected `,` or `]` at line 1 column 4"},
      {"[1", "expected `,` or `]` at line 1 column 3"},
      {"{\"a\":1,}", "expected the name of a member at line 1 column 8"},
      {"{\"a\" 1}", "expected `:` at line 1 column 6"},
      {"{a:1}", "expected the name of a member at line 1 column 2"},
      {"-", "expected a digit at line 1 column 2"},
      {"1.", "expected a digit at line 1 column 3"},
      {"1e", "expected a digit at line 1 column 3"},
      {"\"a", "a string does not end at line 1 column 3"},
      {"\"\\", "invalid escape in a string at line 1 column 3"},
      {"\"\\x\"", "invalid escape in a string at line 1 column 3"},
      {"\"\\u12\"", "invalid \\u escape in a string at line 1 column 3"},
      {"\"\\ud800\"", "invalid \\u escape in a string at line 1 column 3"},
      {"\"\\ud800\\u0041\"", "invalid \\u escape in a string at line 1 column 3"},
      {"\"\\udc00\"", "invalid \\u escape in a string at line 1 column 3"},
      {"\"\n\"", "control character in a string at line 1 column 2"},
      {"\"\xC0\x80\"", "a string is not UTF-8 at line 1 column 2"},
      {"\"\xED\xA0\x80\"", "a string is not UTF-8 at line 1 column 2"},
      {"\"\xF4\x90\x80\x80\"", "a string is not UTF-8 at line 1 column 2"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *error = ordain_json_error(parse(cases[i][0]));
    if (!error || strcmp(error, cases[i][1]) != 0) fprintf(stderr, "%s: %s\n", cases[i][0], error ? error : "no error");
    assert(error && strcmp(error, cases[i][1]) == 0);
  }
}

static void check_depth(void) {
  char text[600];
  for (int depth = 128; depth <= 129; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    const char *error = ordain_json_error(ordain_json_parse((ordain_bytes){text, 2 * (size_t)depth}));
    assert(depth == 128 ? !error : strstr(error, "more than 128 levels") != NULL);
  }
}

static void check_integers(void) {
  ordain_json json = parse("{\"big\":18446744073709551615,\"least\":-9223372036854775808,\"zero\":-0,\"text\":\"5\"}");
  assert(ordain_json_u64(json, "big") == UINT64_MAX);
  assert(ordain_json_i64(json, "least") == INT64_MIN);
  assert(ordain_json_i64(json, "zero") == 0);
  assert(!ordain_json_error(json));
  static const char *const refused_u64[] = {"18446744073709551616", "-1", "1.0", "1e2", "\"1\"", "null", "[1]"};
  for (size_t i = 0; i < sizeof refused_u64 / sizeof *refused_u64; i++) {
    json = parse(refused_u64[i]);
    assert(ordain_json_u64(json, NULL) == 0 && ordain_json_error(json));
  }
  static const char *const refused_i64[] = {"9223372036854775808", "-9223372036854775809", "99999999999999999999",
                                            "true"};
  for (size_t i = 0; i < sizeof refused_i64 / sizeof *refused_i64; i++) {
    json = parse(refused_i64[i]);
    assert(ordain_json_i64(json, NULL) == 0 && ordain_json_error(json));
  }
}

static void check_errors_of_values(void) {
  ordain_json json = parse("{\"n\":-1,\"list\":[1,\"two\"]}");
  assert(ordain_json_u64(json, "absent") == 0);
  assert(strcmp(ordain_json_error(json), "missing field `absent` at line 1 column 1") == 0);
  ordain_json_u64(json, "n");
  assert(strstr(ordain_json_error(json), "absent"));

  json = parse("{\"n\":-1,\"list\":[1,\"two\"]}");
  ordain_json_u64(json, "n");
  assert(strcmp(ordain_json_error(json),
                "field `n`: expected an integer from 0 to 18446744073709551615, found `-1` at line 1 column 6") == 0);

  json = parse("[[\"0123456789012345678901234567890123456789\"]]");
  ordain_json_u64(ordain_json_first(json), "n");
  assert(strstr(ordain_json_error(json), "expected an object, found `[\"01234567890123456789012345678901234567…`"));

  json = parse("{\"list\":1}");
  assert(!ordain_json_first(ordain_json_get(json, "list")).at);
  assert(strstr(ordain_json_error(json), "field `list`: expected an array or an object, found `1`"));
  json = parse("{}");
  assert(!ordain_json_first(ordain_json_get(json, "list")).at);
  assert(strstr(ordain_json_error(json), "missing field `list`"));

  json = parse("null");
  assert(!ordain_json_has(json, "a") && !ordain_json_error(json));
  json = parse("[]");
  assert(!ordain_json_has(json, "a"));
  assert(strcmp(ordain_json_error(json), "expected an object, found `[]` at line 1 column 1") == 0);

  json = parse("nonsense");
  assert(ordain_json_text(json, "a").len == 0 && !ordain_json_has(json, "a"));
  assert(strstr(ordain_json_error(json), "expected a JSON value"));
}

static void check_values(void) {
  ordain_json json =
      parse("{ \"t\" : true , \"d\":-1.5e3, \"s\":\"a\\u00e9\\ud83d\\ude00\\\"\\/\\n\", \"n\":null, "
            "\"k\\u0065y\":1, \"dup\":1, \"dup\":2, \"list\" : [ 1 , [2] , {\"x\":\"]\"} ] , \"o\":{} }");
  assert(ordain_json_bool(json, "t") && ordain_json_double(json, "d") == -1500);
  assert(ordain_bytes_equal(ordain_json_text(json, "s"), "aé😀\"/\n"));
  assert(!ordain_json_has(json, "n") && ordain_json_kind(ordain_json_get(json, "n")) == ORDAIN_JSON_NULL);
  assert(ordain_json_kind(ordain_json_get(json, "absent")) == ORDAIN_JSON_MISSING);
  assert(ordain_json_u64(json, "key") == 1 && ordain_json_u64(json, "dup") == 2);
  ordain_json item = ordain_json_first(ordain_json_get(json, "list"));
  assert(ordain_json_u64(item, NULL) == 1 && !item.name);
  item = ordain_json_next(item);
  assert(ordain_bytes_equal(ordain_json_raw(item), "[2]"));
  item = ordain_json_next(item);
  assert(ordain_bytes_equal(ordain_json_text(item, "x"), "]"));
  assert(!ordain_json_next(item).at && !ordain_json_first(ordain_json_get(json, "o")).at);
  size_t members = 0;
  for (item = ordain_json_first(json); item.at; item = ordain_json_next(item)) {
    if (members == 4) assert(strcmp(item.name, "key") == 0);
    members++;
  }
  assert(members == 9 && !ordain_json_error(json));
}

static void check_writer(void) {
  ordain_writer out = {0};
  ordain_write_object(&out, NULL);
  ordain_write_text(&out, "a\"b", "line\n\x01\x7f\\ é ☃ \xff \xE2\x98");
  ordain_write_u64(&out, "u", UINT64_MAX);
  ordain_write_i64(&out, "i", INT64_MIN);
  ordain_write_double(&out, "d", 0.1);
  ordain_write_double(&out, "e", 1.0 / 3);
  ordain_write_array(&out, "list");
  ordain_write_bool(&out, NULL, false);
  ordain_write_null(&out, NULL);
  ordain_write_object(&out, NULL);
  ordain_write_end(&out);
  ordain_write_json(&out, NULL, ordain_bytes_from("[1,2]"));
  ordain_write_end(&out);
  ordain_write_bytes(&out, "nul", (ordain_bytes){"a\0b", 3});
  ordain_write_end(&out);
  assert(ordain_bytes_equal(ordain_written(&out),
                            "{\"a\\\"b\":\"line\\n\\u0001\x7f\\\\ é ☃ \xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\","
                            "\"u\":18446744073709551615,\"i\":-9223372036854775808,\"d\":0.1,\"e\":0.3333333333333333,"
                            "\"list\":[false,null,{},[1,2]],\"nul\":\"a\\u0000b\"}"));
  assert(strcmp(ordain_quote("say \"hi\""), "\"say \\\"hi\\\"\"") == 0);
}

static void check_long_texts(void) {
  char long_text[1000];
  memset(long_text, 'x', sizeof long_text - 1);
  long_text[sizeof long_text - 1] = '\0';
  assert(strlen(ordain_text("%s/%s", long_text, long_text)) == 1999);
  assert(strlen(ordain_quote(long_text)) == 1001);
}

int main(void) {
  state_is_kept_replaced_and_deleted();
  bytes_pass_unchanged();
  messages_keep_their_order_and_fields();
  rejection_settles_and_retry_does_not();
  fault_has_its_message_and_its_place();
  misuse_is_a_fault();
  key_ends_with_its_last_event();
  random_numbers_depend_on_the_event();
  run_check(check_valid_texts);
  run_check(check_invalid_texts);
  run_check(check_depth);
  run_check(check_integers);
  run_check(check_errors_of_values);
  run_check(check_values);
  run_check(check_writer);
  run_check(check_long_texts);
  puts("all tests passed");
}
