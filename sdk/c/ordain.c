/*
 * The memory of a call, texts, and the effect that a handler describes.
 */
#include "ordain_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Memory */

/* The smallest size of a block in WebAssembly. In a test, each allocation has a block of its own, so that a sanitizer
 * detects accesses beyond its end. */
#ifdef __wasm__
#define BLOCK_SIZE_BYTES ((size_t)16384)
#else
#define BLOCK_SIZE_BYTES ((size_t)0)
#endif

/* The largest block that remains allocated between two calls. */
#define KEPT_BLOCK_LIMIT_BYTES 65536

#define ALIGNMENT_BYTES 16

typedef struct memory_block {
  struct memory_block *next;
  size_t size;
  size_t used;
  _Alignas(ALIGNMENT_BYTES) char memory[];
} memory_block;

static memory_block *blocks;

static memory_block *new_block(size_t size) {
  memory_block *block = malloc(sizeof *block + size);
  if (!block) ordain_fail("the handler is out of memory: it cannot allocate %zu more bytes", size);
  block->next = blocks;
  block->size = size;
  block->used = 0;
  blocks = block;
  return block;
}

void *ordain_alloc(size_t size) {
  size_t padding = (ALIGNMENT_BYTES - size % ALIGNMENT_BYTES) % ALIGNMENT_BYTES;
  size_t needed = BLOCK_SIZE_BYTES ? size + padding : size;
  if (needed < size || needed > SIZE_MAX / 2) ordain_fail("the handler cannot allocate %zu bytes at once", size);
  memory_block *block = blocks;
  if (!block || block->size - block->used < needed) {
    block = new_block(needed > BLOCK_SIZE_BYTES ? needed : BLOCK_SIZE_BYTES);
  }
  char *memory = block->memory + block->used;
  block->used += needed;
  return memset(memory, 0, size);
}

char *ordain_alloc_bytes(size_t size) {
  if (size == SIZE_MAX) ordain_fail("the handler cannot allocate %zu bytes at once", size);
  return ordain_alloc(size + 1);
}

static void free_blocks(void) {
  memory_block *kept = NULL;
  while (blocks) {
    memory_block *next = blocks->next;
    if (BLOCK_SIZE_BYTES && !next && blocks->size <= KEPT_BLOCK_LIMIT_BYTES) {
      kept = blocks;
      kept->used = 0;
    } else {
      free(blocks);
    }
    blocks = next;
  }
  blocks = kept;
}

/* Texts */

ordain_bytes ordain_copy(const char *ptr, size_t len) {
  char *copy = ordain_alloc_bytes(len);
  if (len) memcpy(copy, ptr, len);
  return (ordain_bytes){copy, len};
}

ordain_bytes ordain_bytes_from(const char *text) { return (ordain_bytes){text, strlen(text)}; }

bool ordain_bytes_equal(ordain_bytes bytes, const char *text) {
  size_t len = strlen(text);
  return bytes.len == len && (!len || memcmp(bytes.ptr, text, len) == 0);
}

size_t ordain_utf8_length(const char *text, size_t len) {
  const unsigned char *bytes = (const unsigned char *)text;
  if (!len) return 0;
  unsigned char first = bytes[0];
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  size_t size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (size > len) return 0;
  for (size_t i = 1; i < size; i++) {
    if ((bytes[i] & 0xC0) != 0x80) return 0;
  }
  bool is_overlong = (first == 0xE0 && bytes[1] < 0xA0) || (first == 0xF0 && bytes[1] < 0x90);
  bool is_surrogate = first == 0xED && bytes[1] >= 0xA0;
  bool is_too_large = first == 0xF4 && bytes[1] >= 0x90;
  return is_overlong || is_surrogate || is_too_large ? 0 : size;
}

static bool is_utf8(ordain_bytes text) {
  for (size_t at = 0; at < text.len;) {
    size_t size = ordain_utf8_length(text.ptr + at, text.len - at);
    if (!size) return false;
    at += size;
  }
  return true;
}

static ordain_bytes replace_invalid(ordain_bytes text) {
  char *valid = ordain_alloc_bytes(3 * text.len);
  size_t len = 0;
  for (size_t at = 0; at < text.len;) {
    size_t size = ordain_utf8_length(text.ptr + at, text.len - at);
    memcpy(valid + len, size ? text.ptr + at : "\xEF\xBF\xBD", size ? size : 3);
    len += size ? size : 3;
    at += size ? size : 1;
  }
  return (ordain_bytes){valid, len};
}

ORDAIN_PRINTF(1, 0) static ordain_bytes format_text(const char *format, va_list arguments) {
  char buffer[256];
  va_list again;
  va_copy(again, arguments);
  int len = vsnprintf(buffer, sizeof buffer, format, arguments);
  if (len < 0) ordain_fail("the format \"%s\" is invalid", format);
  ordain_bytes text;
  if ((size_t)len < sizeof buffer) {
    text = ordain_copy(buffer, (size_t)len);
  } else {
    char *memory = ordain_alloc_bytes((size_t)len);
    vsnprintf(memory, (size_t)len + 1, format, again);
    text = (ordain_bytes){memory, (size_t)len};
  }
  va_end(again);
  return text;
}

/* Formats a text for people. Replaces each byte that is not UTF-8. */
ORDAIN_PRINTF(1, 0) static ordain_bytes format_readable(const char *format, va_list arguments) {
  ordain_bytes text = format_text(format, arguments);
  return is_utf8(text) ? text : replace_invalid(text);
}

char *ordain_text(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  ordain_bytes text = format_text(format, arguments);
  va_end(arguments);
  return (char *)text.ptr;
}

/* The effect */

static ordain_effect current;

void ordain_reset(void) {
  current = (ordain_effect){0};
  free_blocks();
}

void ordain_keep(void) { current.change = CHANGE_KEEP; }

void ordain_put(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  current.state = format_text(format, arguments);
  va_end(arguments);
  current.change = CHANGE_PUT;
}

void ordain_put_bytes(ordain_bytes state) {
  current.state = ordain_copy(state.ptr, state.len);
  current.change = CHANGE_PUT;
}

void ordain_delete(void) { current.change = CHANGE_DELETE; }

void ordain_complete(void) { current.complete = true; }

static ordain_bytes copy_text(const char *text) { return ordain_copy(text, strlen(text)); }

static ordain_message *add_message(const char *sink, const char *type, const char *content_type, ordain_bytes data) {
  message_node *node = ordain_alloc(sizeof *node);
  node->message.sink = copy_text(sink);
  node->message.type = copy_text(type);
  node->message.content_type = copy_text(content_type);
  node->message.data = data;
  if (current.last) {
    current.last->next = node;
  } else {
    current.first = node;
  }
  current.last = node;
  current.message_count++;
  return &node->message;
}

ordain_message *ordain_emit(const char *sink, const char *type, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  ordain_bytes data = format_text(format, arguments);
  va_end(arguments);
  return add_message(sink, type, "application/json", data);
}

ordain_message *ordain_emit_bytes(const char *sink, const char *type, const char *content_type, ordain_bytes data) {
  return add_message(sink, type, content_type, ordain_copy(data.ptr, data.len));
}

void ordain_message_key(ordain_message *message, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  message->key.value = format_text(format, arguments);
  message->key.has_value = true;
  va_end(arguments);
}

void ordain_message_header(ordain_message *message, ordain_bytes name, ordain_bytes value) {
  message_node *node = (message_node *)message;
  ordain_headers *headers = &message->headers;
  if (headers->len == node->header_capacity) {
    size_t capacity = headers->len ? 2 * headers->len : 4;
    ordain_header *grown = ordain_alloc(capacity * sizeof *grown);
    if (headers->len) memcpy(grown, headers->ptr, headers->len * sizeof *grown);
    headers->ptr = grown;
    node->header_capacity = capacity;
  }
  ordain_header *header = (ordain_header *)headers->ptr + headers->len++;
  header->name = ordain_copy(name.ptr, name.len);
  header->value = ordain_copy(value.ptr, value.len);
}

void ordain_message_delay(ordain_message *message, uint64_t delay_ms) {
  message->delay_ms = (ordain_optional_u64){true, delay_ms};
}

ordain_message *ordain_message_array(const ordain_effect *effect) {
  ordain_message *messages = ordain_alloc(effect->message_count * sizeof *messages);
  ordain_message *next = messages;
  for (const message_node *node = effect->first; node; node = node->next) *next++ = node->message;
  return messages;
}

/* The end of a call */

ordain_result ordain_reject(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  current.reason = format_readable(format, arguments);
  va_end(arguments);
  return current.result = ORDAIN_REJECT;
}

ordain_result ordain_retry(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  current.reason = format_readable(format, arguments);
  va_end(arguments);
  current.retry_after_ms.has_value = false;
  return current.result = ORDAIN_RETRY;
}

ordain_result ordain_retry_after(uint64_t delay_ms, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  current.reason = format_readable(format, arguments);
  va_end(arguments);
  current.retry_after_ms = (ordain_optional_u64){true, delay_ms};
  return current.result = ORDAIN_RETRY;
}

void ordain_fault_at(const char *file, int line, const char *function, const char *format, ...) {
  /* The memory of the call may be exhausted, so the message has a fixed buffer. */
  static char message[4096];
  va_list arguments;
  va_start(arguments, format);
  int len = vsnprintf(message, sizeof message - 512, format, arguments);
  va_end(arguments);
  size_t used = len < 0 ? 0 : strlen(message);
  if (file) snprintf(message + used, sizeof message - used, "\n    at %.200s (%.200s:%d)", function, file, line);
  for (size_t at = 0; message[at];) {
    size_t size = ordain_utf8_length(message + at, strlen(message + at));
    if (!size) message[at] = '?';
    at += size ? size : 1;
  }
  ordain_platform_fail(ordain_bytes_from(message));
}

void ordain_log(ordain_level level, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  ordain_platform_log(level, format_readable(format, arguments));
  va_end(arguments);
}

/* The call */

static void require_utf8(ordain_bytes text, const char *part, const ordain_message *message) {
  if (!is_utf8(text)) ordain_fail("the %s of a message of type \"%s\" is not UTF-8", part, message->type.ptr);
}

static void check_message(const ordain_message *message) {
  require_utf8(message->type, "type", message);
  require_utf8(message->sink, "sink", message);
  require_utf8(message->content_type, "media type", message);
  if (message->key.has_value) require_utf8(message->key.value, "key", message);
  for (size_t i = 0; i < message->headers.len; i++) {
    require_utf8(message->headers.ptr[i].name, "header's name", message);
    require_utf8(message->headers.ptr[i].value, "header's value", message);
  }
}

static void check_result(ordain_result result) {
  if (result == current.result) return;
  if (current.result != ORDAIN_OK) {
    ordain_fail("the handler called %s() but did not return its result",
                current.result == ORDAIN_REJECT ? "ordain_reject" : "ordain_retry");
  }
  ordain_fail("the handler returned %d; it must return ORDAIN_OK, or the result of ordain_reject() or ordain_retry()",
              (int)result);
}

static uint32_t hash(uint32_t hash, const void *ptr, size_t len) {
  const unsigned char *bytes = ptr;
  for (size_t i = 0; i < len; i++) hash = (hash ^ bytes[i]) * 16777619u;
  return hash;
}

/* Makes rand() return the same values in each try of an event. */
static void seed_rand(const ordain_event *event) {
  uint32_t seed = hash(2166136261u, event->stream.ptr, event->stream.len + 1);
  seed = hash(seed, event->key.ptr, event->key.len);
  srand(hash(seed, &event->sequence, sizeof event->sequence));
}

const ordain_effect *ordain_call(const ordain_event *event, const ordain_bytes *state) {
  current = (ordain_effect){0};
  seed_rand(event);
  check_result(ordain_handle(event, state));
  for (const message_node *node = current.first; node; node = node->next) check_message(&node->message);
  return &current;
}
