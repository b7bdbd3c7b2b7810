/*
 * The reader of JSON.
 *
 * The reader checks the whole text once. A value is a position in the checked text, and the functions that read a value
 * scan the text again from this position.
 */
#include "ordain_internal.h"

#include <stdlib.h>
#include <string.h>

/* The maximum number of levels. The parser calls itself for each level, and its stack is small. */
#define DEPTH_LIMIT 128

/* The maximum length of a value in the text of an error. */
#define EXCERPT_LIMIT_BYTES 40

struct ordain_json_document {
  const char *start;
  const char *end;
  size_t size; /* the size of the text; 0 if an empty text counts as `null` */
  const char *error;
};

static void set_error(struct ordain_json_document *document, const char *at, const char *problem) {
  if (document->error) return;
  size_t line = 1;
  const char *line_start = document->start;
  for (const char *character = document->start; character < at; character++) {
    if (*character == '\n') {
      line++;
      line_start = character + 1;
    }
  }
  size_t column = (size_t)(at - line_start) + 1;
  document->error = ordain_text("%s at line %zu column %zu", problem, line, column);
}

/* The parser. Each function returns the position after the value, or NULL after an error. */

static const char *skip_space(const struct ordain_json_document *document, const char *at) {
  while (at < document->end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
  return at;
}

static bool is_digit(const struct ordain_json_document *document, const char *at) {
  return at < document->end && *at >= '0' && *at <= '9';
}

static const char *parse_digits(struct ordain_json_document *document, const char *at) {
  if (!is_digit(document, at)) {
    set_error(document, at, "expected a digit");
    return NULL;
  }
  while (is_digit(document, at)) at++;
  return at;
}

static const char *parse_number(struct ordain_json_document *document, const char *at) {
  if (*at == '-') at++;
  if (is_digit(document, at) && *at == '0') {
    at++;
    if (is_digit(document, at)) {
      set_error(document, at, "expected no digit after a leading zero");
      return NULL;
    }
  } else if (!(at = parse_digits(document, at))) {
    return NULL;
  }
  if (at < document->end && *at == '.' && !(at = parse_digits(document, at + 1))) return NULL;
  if (at < document->end && (*at == 'e' || *at == 'E')) {
    at++;
    if (at < document->end && (*at == '+' || *at == '-')) at++;
    return parse_digits(document, at);
  }
  return at;
}

static int hex_value(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
  if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
  return -1;
}

/* Returns the number of the four hexadecimal digits at a position; -1 if they are not digits. */
static long hex_number(const struct ordain_json_document *document, const char *at) {
  if (document->end - at < 4) return -1;
  long number = 0;
  for (int i = 0; i < 4; i++) {
    int value = hex_value(at[i]);
    if (value < 0) return -1;
    number = number * 16 + value;
  }
  return number;
}

static bool is_high_surrogate(long unit) { return unit >= 0xD800 && unit < 0xDC00; }

static bool is_low_surrogate(long unit) { return unit >= 0xDC00 && unit < 0xE000; }

/* Parses the characters after a backslash. */
static const char *parse_escape(struct ordain_json_document *document, const char *at) {
  if (at < document->end && *at && strchr("\"\\/bfnrt", *at)) return at + 1;
  if (at == document->end || *at != 'u') {
    set_error(document, at, "invalid escape in a string");
    return NULL;
  }
  long unit = hex_number(document, at + 1);
  bool is_valid = unit >= 0 && !is_low_surrogate(unit);
  const char *next = at + 5;
  if (is_high_surrogate(unit)) {
    bool is_pair = document->end - next >= 6 && next[0] == '\\' && next[1] == 'u';
    is_valid = is_pair && is_low_surrogate(hex_number(document, next + 2));
    next += 6;
  }
  if (!is_valid) {
    set_error(document, at, "invalid \\u escape in a string");
    return NULL;
  }
  return next;
}

static const char *parse_string(struct ordain_json_document *document, const char *at) {
  at++;
  while (at < document->end && *at != '"') {
    if (*at == '\\') {
      at = parse_escape(document, at + 1);
      if (!at) return NULL;
      continue;
    }
    size_t size = ordain_utf8_length(at, (size_t)(document->end - at));
    if (!size || (unsigned char)*at < 0x20) {
      set_error(document, at, size ? "control character in a string" : "a string is not UTF-8");
      return NULL;
    }
    at += size;
  }
  if (at == document->end) {
    set_error(document, at, "a string does not end");
    return NULL;
  }
  return at + 1;
}

static const char *parse_word(struct ordain_json_document *document, const char *at) {
  static const char *const words[] = {"null", "true", "false"};
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t len = strlen(words[i]);
    if ((size_t)(document->end - at) >= len && memcmp(at, words[i], len) == 0) return at + len;
  }
  set_error(document, at, "expected a JSON value");
  return NULL;
}

static const char *parse_value(struct ordain_json_document *document, const char *at, int depth);

static const char *parse_name(struct ordain_json_document *document, const char *at) {
  if (at == document->end || *at != '"') {
    set_error(document, at, "expected the name of a member");
    return NULL;
  }
  at = parse_string(document, at);
  if (!at) return NULL;
  at = skip_space(document, at);
  if (at == document->end || *at != ':') {
    set_error(document, at, "expected `:`");
    return NULL;
  }
  return skip_space(document, at + 1);
}

static const char *parse_container(struct ordain_json_document *document, const char *at, int depth) {
  bool is_object = *at == '{';
  char close = is_object ? '}' : ']';
  if (depth == DEPTH_LIMIT) {
    set_error(document, at, "more than 128 levels");
    return NULL;
  }
  at = skip_space(document, at + 1);
  if (at < document->end && *at == close) return at + 1;
  for (;;) {
    if (is_object && !(at = parse_name(document, at))) return NULL;
    at = parse_value(document, at, depth + 1);
    if (!at) return NULL;
    at = skip_space(document, at);
    if (at < document->end && *at == close) return at + 1;
    if (at == document->end || *at != ',') {
      set_error(document, at, is_object ? "expected `,` or `}`" : "expected `,` or `]`");
      return NULL;
    }
    at = skip_space(document, at + 1);
  }
}

static const char *parse_value(struct ordain_json_document *document, const char *at, int depth) {
  if (at == document->end) {
    set_error(document, at, "expected a JSON value, found the end");
    return NULL;
  }
  if (*at == '{' || *at == '[') return parse_container(document, at, depth);
  if (*at == '"') return parse_string(document, at);
  if (*at == '-' || is_digit(document, at)) return parse_number(document, at);
  return parse_word(document, at);
}

ordain_json ordain_json_parse(ordain_bytes text) {
  struct ordain_json_document *document = ordain_alloc(sizeof *document);
  document->size = text.len;
  if (!text.len) text = ordain_bytes_from("null");
  document->start = text.ptr;
  document->end = text.ptr + text.len;
  const char *at = skip_space(document, document->start);
  const char *end = parse_value(document, at, 0);
  if (end && skip_space(document, end) < document->end) {
    set_error(document, skip_space(document, end), "expected the end");
  }
  return (ordain_json){document, document->error ? NULL : at, NULL};
}

const char *ordain_json_error(ordain_json json) { return json.document->error; }

/* The reader. The text is valid, so the scans need no checks of the syntax. */

static const char *skip_string(const char *at) {
  for (at++; *at != '"'; at++) {
    if (*at == '\\') at++;
  }
  return at + 1;
}

/* Returns whether a character follows a number or a word. */
static bool ends_scalar(char character) {
  return character == ',' || character == '}' || character == ']' || character == ' ' || character == '\n' ||
         character == '\r' || character == '\t';
}

static const char *skip_value(const struct ordain_json_document *document, const char *at) {
  size_t depth = 0;
  do {
    if (*at == '"') {
      at = skip_string(at);
      continue;
    }
    if (*at == '{' || *at == '[') {
      depth++;
    } else if (*at == '}' || *at == ']') {
      depth--;
    } else if (!depth) {
      while (at < document->end && !ends_scalar(*at)) at++;
      return at;
    }
    at++;
  } while (depth);
  return at;
}

ordain_json_type ordain_json_kind(ordain_json json) {
  if (!json.at) return ORDAIN_JSON_MISSING;
  switch (*json.at) {
  case '{': return ORDAIN_JSON_OBJECT;
  case '[': return ORDAIN_JSON_ARRAY;
  case '"': return ORDAIN_JSON_STRING;
  case 'n': return ORDAIN_JSON_NULL;
  case 't':
  case 'f': return ORDAIN_JSON_BOOL;
  default: return ORDAIN_JSON_NUMBER;
  }
}

ordain_bytes ordain_json_raw(ordain_json json) {
  if (!json.at) return ordain_copy(NULL, 0);
  return ordain_copy(json.at, (size_t)(skip_value(json.document, json.at) - json.at));
}

static char *encode_utf8(char *out, unsigned long point) {
  if (point < 0x80) {
    *out++ = (char)point;
  } else if (point < 0x800) {
    *out++ = (char)(0xC0 | point >> 6);
  } else if (point < 0x10000) {
    *out++ = (char)(0xE0 | point >> 12);
    *out++ = (char)(0x80 | (point >> 6 & 0x3F));
  } else {
    *out++ = (char)(0xF0 | point >> 18);
    *out++ = (char)(0x80 | (point >> 12 & 0x3F));
    *out++ = (char)(0x80 | (point >> 6 & 0x3F));
  }
  if (point >= 0x80) *out++ = (char)(0x80 | (point & 0x3F));
  return out;
}

/* Returns the text of the string at a position, without its escapes. */
static ordain_bytes unescape(const struct ordain_json_document *document, const char *at) {
  char *text = ordain_alloc_bytes((size_t)(skip_string(at) - at));
  char *out = text;
  for (at++; *at != '"'; at++) {
    if (*at != '\\') {
      *out++ = *at;
      continue;
    }
    at++;
    static const char letters[] = "bfnrt";
    const char *letter = strchr(letters, *at);
    if (letter) {
      *out++ = "\b\f\n\r\t"[letter - letters];
    } else if (*at == 'u') {
      unsigned long point = (unsigned long)hex_number(document, at + 1);
      at += 4;
      if (is_high_surrogate((long)point)) {
        unsigned long low = (unsigned long)hex_number(document, at + 3);
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        at += 6;
      }
      out = encode_utf8(out, point);
    } else {
      *out++ = *at;
    }
  }
  *out = '\0';
  return (ordain_bytes){text, (size_t)(out - text)};
}

/* Returns the value at a position in a container, or the missing value at the end of the container. */
static ordain_json item_at(ordain_json container, const char *at, bool is_object) {
  struct ordain_json_document *document = container.document;
  at = skip_space(document, at);
  if (*at == '}' || *at == ']') return (ordain_json){document, NULL, NULL};
  if (!is_object) return (ordain_json){document, at, NULL};
  ordain_bytes name = unescape(document, at);
  at = skip_space(document, skip_string(at));
  return (ordain_json){document, skip_space(document, at + 1), name.ptr};
}

ordain_json ordain_json_next(ordain_json item) {
  ordain_json missing = {item.document, NULL, NULL};
  if (!item.at) return missing;
  const char *at = skip_space(item.document, skip_value(item.document, item.at));
  if (at == item.document->end || *at != ',') return missing;
  return item_at(item, at + 1, item.name != NULL);
}

/* Returns whether the string at a position is equal to a name. */
static bool is_name(const struct ordain_json_document *document, const char *at, const char *name) {
  const char *end = skip_string(at) - 1;
  size_t len = (size_t)(end - at - 1);
  if (!memchr(at + 1, '\\', len)) return strlen(name) == len && memcmp(at + 1, name, len) == 0;
  return ordain_bytes_equal(unescape(document, at), name);
}

ordain_json ordain_json_get(ordain_json object, const char *name) {
  struct ordain_json_document *document = object.document;
  ordain_json member = {document, NULL, name};
  if (ordain_json_kind(object) != ORDAIN_JSON_OBJECT) return member;
  const char *at = skip_space(document, object.at + 1);
  while (*at != '}') {
    const char *value = skip_space(document, skip_string(at));
    value = skip_space(document, value + 1);
    if (is_name(document, at, name)) member.at = value;
    at = skip_space(document, skip_value(document, value));
    if (*at == ',') at = skip_space(document, at + 1);
  }
  return member;
}

/* Values with a type */

static void set_type_error(ordain_json json, const char *expected) {
  struct ordain_json_document *document = json.document;
  if (document->error) return;
  size_t len = (size_t)(skip_value(document, json.at) - json.at);
  size_t shown = 0;
  while (shown < len && shown < EXCERPT_LIMIT_BYTES) shown += ordain_utf8_length(json.at + shown, len - shown);
  const char *excerpt = ordain_copy(json.at, shown).ptr;
  const char *ellipsis = shown < len ? "…" : "";
  const char *problem =
      json.name ? ordain_text("field `%s`: expected %s, found `%s%s`", json.name, expected, excerpt, ellipsis)
                : ordain_text("expected %s, found `%s%s`", expected, excerpt, ellipsis);
  set_error(document, json.at, problem);
}

bool ordain_json_has(ordain_json object, const char *name) {
  ordain_json_type kind = ordain_json_kind(object);
  if (kind > ORDAIN_JSON_NULL && kind != ORDAIN_JSON_OBJECT) set_type_error(object, "an object");
  return ordain_json_kind(ordain_json_get(object, name)) > ORDAIN_JSON_NULL;
}

/* Returns the member `name` of a value, or the value itself if `name` is NULL. Sets an error if the member is missing.
 */
static ordain_json require(ordain_json json, const char *name) {
  if (json.document->error) return (ordain_json){json.document, NULL, NULL};
  ordain_json value = json;
  if (name && json.at) {
    if (*json.at != '{') set_type_error(json, "an object");
    value = ordain_json_get(json, name);
  }
  if (!value.at) {
    const char *missing = value.name ? value.name : name;
    const char *problem = missing ? ordain_text("missing field `%s`", missing) : "missing value";
    set_error(json.document, json.at ? json.at : json.document->start, problem);
  }
  return value;
}

ordain_json ordain_json_first(ordain_json container) {
  ordain_json value = require(container, NULL);
  ordain_json_type kind = ordain_json_kind(value);
  if (kind == ORDAIN_JSON_OBJECT || kind == ORDAIN_JSON_ARRAY) {
    return item_at(value, value.at + 1, kind == ORDAIN_JSON_OBJECT);
  }
  if (value.at) set_type_error(value, "an array or an object");
  return (ordain_json){container.document, NULL, NULL};
}

/* Reads the digits of an integer. Returns false if the number is not an integer, or exceeds `limit`. */
static bool read_digits(const struct ordain_json_document *document, const char *at, uint64_t limit, uint64_t *number) {
  const char *end = skip_value(document, at);
  *number = 0;
  for (; at < end; at++) {
    if (!is_digit(document, at)) return false;
    uint64_t digit = (uint64_t)(*at - '0');
    if (*number > (limit - digit) / 10) return false;
    *number = *number * 10 + digit;
  }
  return true;
}

uint64_t ordain_json_u64(ordain_json json, const char *name) {
  ordain_json value = require(json, name);
  if (!value.at) return 0;
  uint64_t number;
  if (ordain_json_kind(value) == ORDAIN_JSON_NUMBER && read_digits(value.document, value.at, UINT64_MAX, &number)) {
    return number;
  }
  set_type_error(value, "an integer from 0 to 18446744073709551615");
  return 0;
}

int64_t ordain_json_i64(ordain_json json, const char *name) {
  ordain_json value = require(json, name);
  if (!value.at) return 0;
  bool is_negative = *value.at == '-';
  uint64_t limit = is_negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
  uint64_t number;
  if (ordain_json_kind(value) == ORDAIN_JSON_NUMBER &&
      read_digits(value.document, value.at + is_negative, limit, &number)) {
    return (int64_t)(is_negative ? 0 - number : number);
  }
  set_type_error(value, "an integer from -9223372036854775808 to 9223372036854775807");
  return 0;
}

double ordain_json_double(ordain_json json, const char *name) {
  ordain_json value = require(json, name);
  if (!value.at) return 0;
  if (ordain_json_kind(value) != ORDAIN_JSON_NUMBER) {
    set_type_error(value, "a number");
    return 0;
  }
  return strtod(ordain_json_raw(value).ptr, NULL);
}

bool ordain_json_bool(ordain_json json, const char *name) {
  ordain_json value = require(json, name);
  if (!value.at) return false;
  if (ordain_json_kind(value) != ORDAIN_JSON_BOOL) {
    set_type_error(value, "`true` or `false`");
    return false;
  }
  return *value.at == 't';
}

ordain_bytes ordain_json_text(ordain_json json, const char *name) {
  ordain_json value = require(json, name);
  if (value.at && ordain_json_kind(value) == ORDAIN_JSON_STRING) return unescape(value.document, value.at);
  if (value.at) set_type_error(value, "a string");
  return ordain_copy(NULL, 0);
}

/* The end of a call because of an undecodable text */

ordain_result ordain_reject_data(const ordain_event *event, ordain_json data) {
  const char *error = data.document->error ? data.document->error : "it is not the expected JSON";
  return ordain_reject("the data of this event of type %s (%zu bytes of %s) cannot be decoded: %s",
                       ordain_quote_bytes(event->type), data.document->size, ordain_quote_bytes(event->content_type),
                       error);
}

void ordain_check_state(ordain_json state) {
  if (!state.document->error) return;
  ordain_fail("the state of this key (%zu bytes) cannot be decoded: %s. If another version of the handler wrote the "
              "state, this version must be able to read that state",
              state.document->size, state.document->error);
}
