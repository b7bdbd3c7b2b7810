/*
 * The component: translates between the canonical ABI of `wit/handler.wit` and the SDK.
 *
 * The types of `ordain.h` have the layout that the canonical ABI prescribes, so that events and messages need no
 * conversion. The assertions below check this.
 */
#include "ordain_internal.h"

#ifdef __wasm__

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMPORT(module, name) __attribute__((import_module(module), import_name(name)))
#define EXPORT(name) __attribute__((export_name(name)))

IMPORT("ordain:handler/logging@0.1.0", "log") void host_log(int level, const char *text, size_t len);
IMPORT("ordain:handler/fault@0.1.0", "fail") void host_fail(const char *text, size_t len);

/* The parameters of `handle`. */
typedef struct parameters {
  ordain_event event;
  struct {
    bool has_value;
    ordain_bytes value;
  } state;
} parameters;

/* The result of `handle`. */
typedef struct call_result {
  bool is_failure;
  union {
    struct {
      uint8_t change;
      ordain_bytes state;
      const ordain_message *messages;
      size_t message_count;
      bool complete;
    } outcome;
    struct {
      enum { FAILURE_RETRY = 0, FAILURE_REJECT = 1 } kind : 8;
      _Alignas(8) ordain_bytes reason;
      ordain_optional_u64 after_ms;
    } failure;
  } value;
} call_result;

#define CHECK_OFFSET(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)
CHECK_OFFSET(parameters, event.sequence, 16);
CHECK_OFFSET(parameters, event.time_ms.value, 56);
CHECK_OFFSET(parameters, event.headers, 72);
CHECK_OFFSET(parameters, event.end_of_sequence, 88);
CHECK_OFFSET(parameters, state.has_value, 96);
CHECK_OFFSET(parameters, state.value, 100);
CHECK_OFFSET(ordain_message, key.value, 12);
CHECK_OFFSET(ordain_message, headers, 36);
CHECK_OFFSET(ordain_message, delay_ms, 56);
CHECK_OFFSET(ordain_message, end_of_sequence, 72);
static_assert(sizeof(ordain_message) == 80, "ordain_message");
CHECK_OFFSET(call_result, value.outcome.change, 8);
CHECK_OFFSET(call_result, value.outcome.state, 12);
CHECK_OFFSET(call_result, value.outcome.messages, 20);
CHECK_OFFSET(call_result, value.outcome.complete, 28);
CHECK_OFFSET(call_result, value.failure.reason, 16);
CHECK_OFFSET(call_result, value.failure.after_ms, 24);
static_assert(sizeof(call_result) == 40, "call_result");

/* Allocates the parameters of a call. The host passes texts as separate blocks, so each text gets its NUL byte. */
EXPORT("cabi_realloc") void *ordain_realloc(void *old, size_t old_size, size_t alignment, size_t size) {
  (void)alignment;
  char *memory = ordain_alloc_bytes(size);
  if (old_size) memcpy(memory, old, old_size < size ? old_size : size);
  return memory;
}

/* Allocates the memory of the adapter for WASI, which keeps this memory for ever. */
EXPORT("cabi_realloc_adapter")
void *ordain_realloc_adapter(void *old, size_t old_size, size_t alignment, size_t size) {
  void *memory = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (!memory) __builtin_trap();
  if (old_size) memcpy(memory, old, old_size < size ? old_size : size);
  return memory;
}

static void fill_failure(call_result *result, const ordain_effect *effect) {
  result->is_failure = true;
  result->value.failure.kind = effect->result == ORDAIN_REJECT ? FAILURE_REJECT : FAILURE_RETRY;
  result->value.failure.reason = effect->reason;
  if (effect->result == ORDAIN_RETRY) result->value.failure.after_ms = effect->retry_after_ms;
}

static void fill_outcome(call_result *result, const ordain_effect *effect) {
  result->value.outcome.change = (uint8_t)effect->change;
  result->value.outcome.state = effect->state;
  result->value.outcome.messages = ordain_message_array(effect);
  result->value.outcome.message_count = effect->message_count;
  result->value.outcome.complete = effect->complete;
}

EXPORT("ordain:handler/handler@0.1.0#handle") call_result *ordain_export_handle(parameters *parameters) {
  const ordain_bytes *state = parameters->state.has_value ? &parameters->state.value : NULL;
  const ordain_effect *effect = ordain_call(&parameters->event, state);
  /* Standard output is buffered. Its text belongs to the log of this event. */
  fflush(NULL);
  static call_result result;
  memset(&result, 0, sizeof result);
  if (effect->result == ORDAIN_OK) {
    fill_outcome(&result, effect);
  } else {
    fill_failure(&result, effect);
  }
  return &result;
}

EXPORT("cabi_post_ordain:handler/handler@0.1.0#handle") void ordain_export_free(call_result *result) {
  (void)result;
  ordain_reset();
}

void ordain_platform_log(ordain_level level, ordain_bytes message) { host_log((int)level, message.ptr, message.len); }

void ordain_platform_fail(ordain_bytes message) {
  fflush(NULL);
  host_fail(message.ptr, message.len);
  __builtin_trap();
}

/* Replaces the function of the C library that a failed assert() calls. The definition is weak because the linker takes
 * the function of the C library if the handler precedes this file. That function writes the same message to standard
 * error, and calls abort(). */
__attribute__((weak)) _Noreturn void __assert_fail(const char *expression, const char *file, int line,
                                                   const char *function) {
  ordain_fault_at(file, line, function ? function : "?", "assertion failed: %s", expression);
}

#endif
