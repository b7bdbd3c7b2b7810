/*
 * The handler of the conformance test, which has the same behaviour in all languages. The type of an event selects an
 * action. The handler emits all messages to the sink `out`.
 */
#include "ordain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SINK "out"
#define JSON "application/json"

typedef ordain_result action(const ordain_event *event, const ordain_bytes *state);

static ordain_result echo(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_message *message = ordain_emit_bytes(SINK, "echoed", event->content_type.ptr, event->data);
  for (size_t i = 0; i < event->headers.len; i++) {
    ordain_message_header(message, event->headers.ptr[i].name, event->headers.ptr[i].value);
  }
  return ORDAIN_OK;
}

static ordain_result describe(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_writer out = {0};
  ordain_write_object(&out, NULL);
  ordain_write_bytes(&out, "stream", event->stream);
  ordain_write_bytes(&out, "key", event->key);
  ordain_write_u64(&out, "sequence", event->sequence);
  ordain_write_bytes(&out, "id", event->id);
  ordain_write_bytes(&out, "type", event->type);
  ordain_write_bytes(&out, "source", event->source);
  if (event->time_ms.has_value) {
    ordain_write_u64(&out, "time_ms", event->time_ms.value);
  } else {
    ordain_write_null(&out, "time_ms");
  }
  ordain_write_bytes(&out, "content_type", event->content_type);
  ordain_write_bool(&out, "end_of_sequence", event->end_of_sequence);
  ordain_write_array(&out, "headers");
  for (size_t i = 0; i < event->headers.len; i++) {
    ordain_write_array(&out, NULL);
    ordain_write_bytes(&out, NULL, event->headers.ptr[i].name);
    ordain_write_bytes(&out, NULL, event->headers.ptr[i].value);
    ordain_write_end(&out);
  }
  ordain_write_end(&out);
  ordain_write_end(&out);
  ordain_emit_bytes(SINK, "described", JSON, ordain_written(&out));
  return ORDAIN_OK;
}

static ordain_result put(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_put_bytes(event->data);
  return ORDAIN_OK;
}

static ordain_result get(const ordain_event *event, const ordain_bytes *state) {
  (void)event;
  if (!state) return ordain_reject("no state");
  ordain_emit_bytes(SINK, "state", "application/octet-stream", *state);
  return ORDAIN_OK;
}

static ordain_result delete_state(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  ordain_delete();
  return ORDAIN_OK;
}

static ordain_result add(const ordain_event *event, const ordain_bytes *state) {
  ordain_json data = ordain_json_parse(event->data);
  int64_t amount = ordain_json_i64(data, "amount");
  if (ordain_json_error(data)) return ordain_reject_data(event, data);
  int64_t total = 0;
  if (state) {
    ordain_json sum = ordain_json_parse(*state);
    total = ordain_json_i64(sum, "total");
    ordain_check_state(sum);
  }
  if (__builtin_add_overflow(total, amount, &total)) return ordain_reject("the total is too large");
  ordain_put("{\"total\":%" PRId64 "}", total);
  ordain_emit(SINK, "added", "{\"total\":%" PRId64 "}", total);
  return ORDAIN_OK;
}

static ordain_result exact(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_json data = ordain_json_parse(event->data);
  uint64_t number = ordain_json_u64(data, "n");
  if (ordain_json_error(data)) return ordain_reject_data(event, data);
  ordain_emit(SINK, "exact", "{\"n\":%" PRIu64 "}", number);
  return ORDAIN_OK;
}

static ordain_result read_clock(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  struct timespec now;
  if (timespec_get(&now, TIME_UTC) != TIME_UTC) ordain_fault("the clock cannot be read");
  ordain_emit(SINK, "clock", "{\"now_ms\":%" PRIu64 "}", (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000);
  return ORDAIN_OK;
}

static ordain_result draw_random(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  int first = rand();
  int second = rand();
  ordain_emit(SINK, "random", "{\"values\":[%d,%d]}", first, second);
  return ORDAIN_OK;
}

static ordain_result write_log(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  ordain_log(ORDAIN_TRACE, "trace ☃");
  ordain_log(ORDAIN_DEBUG, "debug ☃");
  ordain_log(ORDAIN_INFO, "info ☃");
  ordain_log(ORDAIN_WARN, "warn ☃");
  ordain_log(ORDAIN_ERROR, "error ☃");
  return ORDAIN_OK;
}

static ordain_result print(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  printf("printed ☃\n");
  fprintf(stderr, "complained ☃\n");
  return ORDAIN_OK;
}

static ordain_result emit_many(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_json data = ordain_json_parse(event->data);
  uint64_t messages = ordain_json_u64(data, "messages");
  if (ordain_json_error(data)) return ordain_reject_data(event, data);
  for (uint64_t i = 0; i < messages; i++) {
    ordain_message *message = ordain_emit(SINK, "many", "{\"index\":%" PRIu64 "}", i);
    ordain_message_key(message, "%s/%" PRIu64, event->key.ptr, i);
  }
  return ORDAIN_OK;
}

static ordain_result reject(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  return ordain_reject("rejected on request ☃");
}

static ordain_result retry(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  return ordain_retry_after(20, "retried on request ☃");
}

static ordain_result fail(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  ordain_fault("failed on request ☃");
}

/* Ends the call as a library does that does not know the SDK. */
static ordain_result abort_call(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  fprintf(stderr, "aborted on request ☃\n");
  abort();
}

static ordain_result complete(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  ordain_emit_bytes(SINK, "completed", "", ordain_bytes_from(""));
  ordain_complete();
  return ORDAIN_OK;
}

static ordain_result end(const ordain_event *event, const ordain_bytes *state) {
  (void)state;
  ordain_message *message = ordain_emit(SINK, "ended", "{\"end\":%s}", event->end_of_sequence ? "true" : "false");
  message->end_of_sequence = event->end_of_sequence;
  return ORDAIN_OK;
}

static ordain_result spin(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  for (volatile bool is_spinning = true; is_spinning;) {
  }
  return ORDAIN_OK;
}

static ordain_result grow(const ordain_event *event, const ordain_bytes *state) {
  (void)event, (void)state;
  while (ordain_alloc(1 << 20)) {
  }
  return ORDAIN_OK;
}

static const struct {
  const char *type;
  action *action;
} ACTIONS[] = {
    {"echo", echo},
    {"describe", describe},
    {"put", put},
    {"get", get},
    {"delete", delete_state},
    {"add", add},
    {"exact", exact},
    {"clock", read_clock},
    {"random", draw_random},
    {"log", write_log},
    {"print", print},
    {"many", emit_many},
    {"reject", reject},
    {"retry", retry},
    {"fault", fail},
    {"abort", abort_call},
    {"complete", complete},
    {"end", end},
    {"spin", spin},
    {"grow", grow},
};

ORDAIN_HANDLER(event, state) {
  for (size_t i = 0; i < sizeof ACTIONS / sizeof *ACTIONS; i++) {
    if (ordain_bytes_equal(event->type, ACTIONS[i].type)) return ACTIONS[i].action(event, state);
  }
  return ordain_reject("unknown type %s", event->type.ptr);
}
