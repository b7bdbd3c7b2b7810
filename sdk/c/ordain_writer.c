/*
 * The writer of JSON.
 */
#include "ordain_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The maximum number of open levels, so that one bit for each level fits into 64 bits. */
#define DEPTH_LIMIT 63

static char *grow(ordain_writer *writer, size_t size) {
  if (writer->capacity - writer->len < size) {
    if (size > SIZE_MAX / 4 || writer->len > SIZE_MAX / 4) ordain_fail("the JSON text is too long");
    size_t capacity = 2 * writer->capacity > 128 ? 2 * writer->capacity : 128;
    if (capacity < writer->len + size) capacity = writer->len + size;
    char *grown = ordain_alloc_bytes(capacity);
    if (writer->len) memcpy(grown, writer->ptr, writer->len);
    writer->ptr = grown;
    writer->capacity = capacity;
  }
  char *end = writer->ptr + writer->len;
  writer->len += size;
  return end;
}

static void append(ordain_writer *writer, const char *text, size_t len) {
  if (len) memcpy(grow(writer, len), text, len);
}

static void append_escape(ordain_writer *writer, unsigned char character) {
  static const char escaped[] = "\"\\\b\f\n\r\t";
  static const char letters[] = "\"\\bfnrt";
  const char *found = character ? strchr(escaped, character) : NULL;
  char text[7];
  if (found) {
    snprintf(text, sizeof text, "\\%c", letters[found - escaped]);
  } else {
    snprintf(text, sizeof text, "\\u%04x", character);
  }
  append(writer, text, strlen(text));
}

static bool needs_escape(unsigned char character) { return character < 0x20 || character == '"' || character == '\\'; }

static void append_string(ordain_writer *writer, ordain_bytes text) {
  append(writer, "\"", 1);
  size_t start = 0;
  for (size_t at = 0; at < text.len;) {
    size_t size = ordain_utf8_length(text.ptr + at, text.len - at);
    unsigned char character = (unsigned char)text.ptr[at];
    if (size && !needs_escape(character)) {
      at += size;
      continue;
    }
    append(writer, text.ptr + start, at - start);
    if (size) {
      append_escape(writer, character);
    } else {
      append(writer, "\xEF\xBF\xBD", 3);
    }
    start = ++at;
  }
  append(writer, text.ptr + start, text.len - start);
  append(writer, "\"", 1);
}

const char *ordain_quote_bytes(ordain_bytes text) {
  ordain_writer writer = {0};
  append_string(&writer, text);
  *grow(&writer, 1) = '\0';
  return writer.ptr;
}

const char *ordain_quote(const char *text) { return ordain_quote_bytes(ordain_bytes_from(text)); }

/* Writes the comma and the name before a value. */
static void begin(ordain_writer *writer, const char *name) {
  uint64_t level = UINT64_C(1) << writer->depth;
  bool in_object = writer->depth && (writer->objects & level);
  if (in_object && !name) ordain_fail("a value in a JSON object needs a name");
  if (!in_object && name) ordain_fail("the JSON value \"%s\" has a name, but it is not in an object", name);
  if (writer->nonempty & level) {
    if (!writer->depth) ordain_fail("a JSON text contains one value, but the handler writes a second value");
    append(writer, ",", 1);
  }
  writer->nonempty |= level;
  if (name) {
    append_string(writer, ordain_bytes_from(name));
    append(writer, ":", 1);
  }
}

static void open_level(ordain_writer *writer, const char *name, bool is_object) {
  begin(writer, name);
  if (writer->depth == DEPTH_LIMIT) ordain_fail("the JSON text has more than %d levels", DEPTH_LIMIT);
  append(writer, is_object ? "{" : "[", 1);
  uint64_t level = UINT64_C(1) << ++writer->depth;
  writer->nonempty &= ~level;
  writer->objects = is_object ? writer->objects | level : writer->objects & ~level;
}

void ordain_write_object(ordain_writer *writer, const char *name) { open_level(writer, name, true); }

void ordain_write_array(ordain_writer *writer, const char *name) { open_level(writer, name, false); }

void ordain_write_end(ordain_writer *writer) {
  if (!writer->depth) ordain_fail("the JSON text has no open object or array to close");
  bool is_object = writer->objects >> writer->depth & 1;
  append(writer, is_object ? "}" : "]", 1);
  writer->depth--;
}

void ordain_write_bytes(ordain_writer *writer, const char *name, ordain_bytes value) {
  begin(writer, name);
  append_string(writer, value);
}

void ordain_write_text(ordain_writer *writer, const char *name, const char *value) {
  ordain_write_bytes(writer, name, ordain_bytes_from(value));
}

void ordain_write_json(ordain_writer *writer, const char *name, ordain_bytes json) {
  begin(writer, name);
  append(writer, json.ptr, json.len);
}

static void write_plain(ordain_writer *writer, const char *name, const char *text) {
  ordain_write_json(writer, name, ordain_bytes_from(text));
}

void ordain_write_u64(ordain_writer *writer, const char *name, uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRIu64, value);
  write_plain(writer, name, text);
}

void ordain_write_i64(ordain_writer *writer, const char *name, int64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRId64, value);
  write_plain(writer, name, text);
}

void ordain_write_double(ordain_writer *writer, const char *name, double value) {
  if (!isfinite(value)) ordain_fail("JSON has no number for %f", value);
  char text[32];
  for (int digits = 15; digits <= 17; digits++) {
    snprintf(text, sizeof text, "%.*g", digits, value);
    if (strtod(text, NULL) == value) break;
  }
  write_plain(writer, name, text);
}

void ordain_write_bool(ordain_writer *writer, const char *name, bool value) {
  write_plain(writer, name, value ? "true" : "false");
}

void ordain_write_null(ordain_writer *writer, const char *name) { write_plain(writer, name, "null"); }

ordain_bytes ordain_written(ordain_writer *writer) {
  if (writer->depth) ordain_fail("%u objects or arrays of the JSON text are still open", writer->depth);
  if (!writer->len) ordain_fail("the JSON text contains no value");
  return ordain_copy(writer->ptr, writer->len);
}
