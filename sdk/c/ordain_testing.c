/*
 * The runner of native tests.
 */
#include "ordain_testing.h"
#include "ordain_internal.h"

#ifndef __wasm__

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ordain_runner {
  char *state; /* followed by a NUL byte; NULL if the key has no state */
  size_t state_len;
  uint64_t next;
  bool ended;
  char id[32];
  char *data; /* the data of the event that ordain_runner_next() returned */
  ordain_outcome outcome;
};

/* The place to which a fault returns; NULL outside of a call. */
static jmp_buf *fault_target;
static char *fault_message;

static void *allocate(size_t size) {
  void *memory = calloc(1, size);
  if (!memory) abort();
  return memory;
}

static char *duplicate(const char *ptr, size_t len) {
  char *copy = allocate(len + 1);
  if (len) memcpy(copy, ptr, len);
  return copy;
}

void ordain_platform_log(ordain_level level, ordain_bytes message) {
  static const char *const names[] = {"trace", "debug", "info", "warn", "error"};
  fprintf(stderr, "%s: %s\n", names[level], message.ptr);
}

void ordain_platform_fail(ordain_bytes message) {
  if (fault_target) {
    free(fault_message);
    fault_message = duplicate(message.ptr, message.len);
    longjmp(*fault_target, 1);
  }
  fprintf(stderr, "fault: %s\n", message.ptr);
  abort();
}

ordain_runner *ordain_runner_new(void) {
  ordain_runner *runner = allocate(sizeof *runner);
  runner->next = 1;
  return runner;
}

void ordain_runner_free(ordain_runner *runner) {
  if (!runner) return;
  ordain_reset();
  free(fault_message);
  fault_message = NULL;
  free(runner->state);
  free(runner->data);
  free(runner);
}

ordain_event ordain_runner_next(ordain_runner *runner, const char *type, const char *data) {
  free(runner->data);
  runner->data = duplicate(data, strlen(data));
  snprintf(runner->id, sizeof runner->id, "key/%" PRIu64, runner->next);
  return (ordain_event){
      .stream = ordain_bytes_from("test"),
      .key = ordain_bytes_from("key"),
      .sequence = runner->next,
      .id = ordain_bytes_from(runner->id),
      .type = ordain_bytes_from(type),
      .source = ordain_bytes_from("/test"),
      .time_ms = {true, 0},
      .content_type = ordain_bytes_from("application/json"),
      .headers = {NULL, 0},
      .data = ordain_bytes_from(runner->data),
      .end_of_sequence = false,
  };
}

/* Copies an event into the memory of the call, as the host does. */
static ordain_event copy_event(const ordain_event *event) {
  ordain_event copy = *event;
  ordain_bytes *texts[] = {&copy.stream, &copy.key, &copy.id, &copy.type, &copy.source, &copy.content_type, &copy.data};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) *texts[i] = ordain_copy(texts[i]->ptr, texts[i]->len);
  ordain_header *headers = ordain_alloc(event->headers.len * sizeof *headers);
  for (size_t i = 0; i < event->headers.len; i++) {
    ordain_header header = event->headers.ptr[i];
    headers[i].name = ordain_copy(header.name.ptr, header.name.len);
    headers[i].value = ordain_copy(header.value.ptr, header.value.len);
  }
  copy.headers.ptr = headers;
  return copy;
}

static void set_outcome(ordain_outcome *outcome, const ordain_effect *effect) {
  outcome->result = effect->result;
  if (effect->result != ORDAIN_OK) {
    outcome->reason = effect->reason.ptr;
    outcome->retry_after_ms = effect->retry_after_ms;
    return;
  }
  outcome->change = (ordain_change)effect->change;
  if (effect->change == CHANGE_PUT) outcome->state = effect->state;
  outcome->messages = ordain_message_array(effect);
  outcome->message_count = effect->message_count;
  outcome->complete = effect->complete;
}

/* Calls the handler. A fault sets the outcome too. */
static void call(ordain_runner *runner, const ordain_event *event) {
  ordain_outcome *outcome = &runner->outcome;
  *outcome = (ordain_outcome){.reason = "", .state = {"", 0}};
  jmp_buf target;
  if (setjmp(target)) {
    outcome->result = ORDAIN_FAULT;
    outcome->reason = fault_message;
  } else {
    fault_target = &target;
    ordain_bytes state = ordain_copy(runner->state, runner->state ? runner->state_len : 0);
    set_outcome(outcome, ordain_call(event, runner->state ? &state : NULL));
  }
  fault_target = NULL;
}

const ordain_outcome *ordain_runner_send(ordain_runner *runner, const ordain_event *event) {
  if (runner->ended) {
    fprintf(stderr, "the key has ended before event %" PRIu64 " \"%s\"\n", event->sequence, event->type.ptr);
    abort();
  }
  ordain_reset();
  ordain_event copy = copy_event(event);
  call(runner, &copy);
  const ordain_outcome *outcome = &runner->outcome;
  if (outcome->result == ORDAIN_RETRY || outcome->result == ORDAIN_FAULT) return outcome;
  /* A test may send an event with an earlier sequence. Such an event does not advance the key. */
  if (runner->next <= copy.sequence && copy.sequence < UINT64_MAX) runner->next = copy.sequence + 1;
  runner->ended = copy.end_of_sequence || outcome->complete;
  if (outcome->change == ORDAIN_PUT) ordain_runner_set_state_bytes(runner, outcome->state);
  if (outcome->change == ORDAIN_DELETED) ordain_runner_set_state(runner, NULL);
  return outcome;
}

const ordain_outcome *ordain_runner_event(ordain_runner *runner, const char *type, const char *data) {
  ordain_event event = ordain_runner_next(runner, type, data);
  return ordain_runner_send(runner, &event);
}

const char *ordain_runner_state(const ordain_runner *runner) { return runner->state; }

void ordain_runner_set_state(ordain_runner *runner, const char *state) {
  if (state) {
    ordain_runner_set_state_bytes(runner, ordain_bytes_from(state));
    return;
  }
  free(runner->state);
  runner->state = NULL;
  runner->state_len = 0;
}

void ordain_runner_set_state_bytes(ordain_runner *runner, ordain_bytes state) {
  char *copy = duplicate(state.ptr, state.len);
  free(runner->state);
  runner->state = copy;
  runner->state_len = state.len;
}

bool ordain_runner_ended(const ordain_runner *runner) { return runner->ended; }

#endif
