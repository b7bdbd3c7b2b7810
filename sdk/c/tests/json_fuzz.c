/*
 * Feeds mutated JSON to the reader for some seconds: `json_fuzz SECONDS [SEED]`.
 *
 * The sanitizers detect invalid accesses. For each valid text, the program also copies the value through the reader and
 * the writer twice, and checks that both copies are equal.
 */
#undef NDEBUG
#include "../ordain_internal.h"
#include "ordain_testing.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const SEEDS[] = {
    "{\"amount\":5,\"do\":\"ok\"}",
    "[1,-2.5e-3,true,false,null,\"\",[[]],{}]",
    "{\"a\":{\"b\":[1,{\"c\":\"\\u00e9\\ud83d\\ude00\\n\"}]},\"a\":18446744073709551615}",
    " { \"k\\u0065y\" : \"\xE2\x98\x83\xF0\x9F\x92\xA5\" , \"x\" : [ 0 , -0 , 1E+2 ] } ",
};
#define SEED_COUNT (sizeof SEEDS / sizeof *SEEDS)
#define TEXT_LIMIT 400
/* The writer supports fewer levels than the reader. */
#define COPIED_DEPTH_LIMIT 60

static uint64_t random_state;
static ordain_bytes input;
static unsigned long valid_count;

static uint64_t draw(uint64_t limit) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % limit;
}

static void copy_value(ordain_writer *out, ordain_json value, const char *name, int depth) {
  ordain_json_type kind = ordain_json_kind(value);
  ordain_json root = {value.document, value.at, NULL};
  if (kind == ORDAIN_JSON_STRING) {
    ordain_write_bytes(out, name, ordain_json_text(root, NULL));
  } else if ((kind == ORDAIN_JSON_OBJECT || kind == ORDAIN_JSON_ARRAY) && depth < COPIED_DEPTH_LIMIT) {
    if (kind == ORDAIN_JSON_OBJECT) ordain_write_object(out, name);
    if (kind == ORDAIN_JSON_ARRAY) ordain_write_array(out, name);
    for (ordain_json item = ordain_json_first(value); item.at; item = ordain_json_next(item)) {
      copy_value(out, item, item.name, depth + 1);
    }
    ordain_write_end(out);
  } else {
    ordain_write_json(out, name, ordain_json_raw(value));
  }
}

static ordain_bytes copy_text(ordain_json json) {
  ordain_writer out = {0};
  copy_value(&out, json, NULL, 0);
  return ordain_written(&out);
}

/* Reads values of any type, which must only set an error. */
static void read_values(ordain_bytes text) {
  static const char *const names[] = {NULL, "a", "key", "amount"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    ordain_json_u64(ordain_json_parse(text), names[i]);
    ordain_json_i64(ordain_json_parse(text), names[i]);
    ordain_json_double(ordain_json_parse(text), names[i]);
    ordain_json_bool(ordain_json_parse(text), names[i]);
    ordain_json_text(ordain_json_parse(text), names[i]);
  }
}

ORDAIN_HANDLER(event, state) {
  ordain_json json = ordain_json_parse(input);
  read_values(input);
  if (ordain_json_error(json)) return ORDAIN_OK;
  valid_count++;
  ordain_bytes first = copy_text(json);
  ordain_json again = ordain_json_parse(first);
  assert(!ordain_json_error(again));
  assert(ordain_bytes_equal(copy_text(again), first.ptr));
  return ORDAIN_OK;
}

static size_t mutate(char *text, size_t len) {
  static const char pieces[] = "{}[]\",:\\u0123456789abcdefnrtdDC8+-.eE \n\0\xE2\x98\x83\xF0\xED\xA0";
  switch (draw(4)) {
  case 0:
    if (len) text[draw(len)] = pieces[draw(sizeof pieces)];
    return len;
  case 1: {
    if (len >= TEXT_LIMIT) return len;
    size_t at = draw(len + 1);
    memmove(text + at + 1, text + at, len - at);
    text[at] = pieces[draw(sizeof pieces)];
    return len + 1;
  }
  case 2: {
    if (!len) return len;
    size_t at = draw(len);
    memmove(text + at, text + at + 1, len - at - 1);
    return len - 1;
  }
  default: return draw(8) ? len : draw(len + 1);
  }
}

int main(int count, char **arguments) {
  int seconds = count > 1 ? atoi(arguments[1]) : 3;
  random_state = count > 2 ? strtoull(arguments[2], NULL, 10) : (uint64_t)time(NULL) * 2654435761u + 1;
  printf("seed %" PRIu64 "\n", random_state);
  ordain_runner *runner = ordain_runner_new();
  unsigned long texts = 0;
  for (time_t end = time(NULL) + seconds; time(NULL) < end; texts++) {
    const char *seed = SEEDS[draw(SEED_COUNT)];
    char text[TEXT_LIMIT + 1];
    size_t len = strlen(seed);
    memcpy(text, seed, len);
    for (uint64_t changes = draw(12); changes; changes--) len = mutate(text, len);
    /* A block of the exact size, so that a sanitizer detects an access beyond its end. */
    char *exact = malloc(len ? len : 1);
    assert(exact);
    memcpy(exact, text, len);
    input = (ordain_bytes){exact, len};
    ordain_event event = ordain_runner_next(runner, "fuzz", "");
    assert(ordain_runner_send(runner, &event)->result == ORDAIN_OK);
    free(exact);
  }
  ordain_runner_free(runner);
  printf("%lu texts, %lu of them valid\n", texts, valid_count);
}
