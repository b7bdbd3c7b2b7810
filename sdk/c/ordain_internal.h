/*
 * The parts of the SDK that its files share. Handlers never include this header.
 */
#ifndef ORDAIN_INTERNAL_H
#define ORDAIN_INTERNAL_H

#include "ordain.h"

/* The change of a key's state. The numbers are those of the WIT. */
typedef enum change { CHANGE_KEEP = 0, CHANGE_PUT = 1, CHANGE_DELETE = 2 } change;

/* A message in the list of emitted messages. The address of a message never changes. */
typedef struct message_node {
  ordain_message message;
  size_t header_capacity;
  struct message_node *next;
} message_node;

/* The effect of the current call. */
typedef struct ordain_effect {
  ordain_result result; /* the result that the handler has announced by a function such as ordain_reject() */
  ordain_bytes reason;
  ordain_optional_u64 retry_after_ms;
  change change;
  ordain_bytes state;
  message_node *first;
  message_node *last;
  size_t message_count;
  bool complete;
} ordain_effect;

/* Calls the handler and checks its effect. The effect remains valid until ordain_reset(). */
const ordain_effect *ordain_call(const ordain_event *event, const ordain_bytes *state);

/* Copies the messages of an effect into one array. */
ordain_message *ordain_message_array(const ordain_effect *effect);

/* Frees the memory of the current call, and forgets its effect. */
void ordain_reset(void);

/* Returns memory for a block of bytes and the NUL byte after it. The memory is freed after the call. */
char *ordain_alloc_bytes(size_t size);

/* Copies bytes, and adds a NUL byte. */
ordain_bytes ordain_copy(const char *ptr, size_t len);

/* Returns the number of bytes of the UTF-8 character at `text`, which has `len` bytes; 0 if no character is valid. */
size_t ordain_utf8_length(const char *text, size_t len);

/* Ends the call because of a fault that the SDK detects. The message contains no place in the code. */
#define ordain_fail(...) ordain_fault_at(NULL, 0, NULL, __VA_ARGS__)

/* Ends the call. Each platform has its own implementation. */
ORDAIN_NO_RETURN void ordain_platform_fail(ordain_bytes message);

/* Writes a line to the log. Each platform has its own implementation. */
void ordain_platform_log(ordain_level level, ordain_bytes message);

#endif
