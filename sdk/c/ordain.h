/**
 * @file ordain.h
 * @brief The SDK for handlers in C and C++.
 *
 * A handler is one function. It receives an event and the state of the event's key, and describes the effect of the
 * event: a new state, and messages. The header also works with C++ (compile with `-fno-exceptions`).
 *
 * @code
 * #include "ordain.h"
 *
 * ORDAIN_HANDLER(event, state) {
 *   ordain_json data = ordain_json_parse(event->data);
 *   int64_t amount = ordain_json_i64(data, "amount");
 *   if (ordain_json_error(data)) return ordain_reject_data(event, data);
 *
 *   int64_t balance = 0;
 *   if (state) {
 *     ordain_json account = ordain_json_parse(*state);
 *     balance = ordain_json_i64(account, "balance");
 *     ordain_check_state(account);
 *   }
 *   if (balance + amount < 0) return ordain_reject("the balance is only %" PRId64, balance);
 *
 *   ordain_put("{\"balance\":%" PRId64 "}", balance + amount);
 *   ordain_emit("changes", "account.changed", "{\"balance\":%" PRId64 "}", balance + amount);
 *   return ORDAIN_OK;
 * }
 * @endcode
 *
 * Memory: the SDK owns every pointer that it passes to the handler or returns, and frees the memory after the call. All
 * functions copy their arguments. A handler therefore never frees memory of the SDK, and must not keep a pointer of
 * the SDK for a later call.
 *
 * Text: every ordain_bytes that the SDK passes to the handler or returns is followed by a NUL byte, which `len` does
 * not count. Its `ptr` is therefore also a C string, unless the bytes themselves contain a NUL.
 */
#ifndef ORDAIN_H
#define ORDAIN_H

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** @cond attributes of functions */
#if defined(__GNUC__)
#define ORDAIN_PRINTF(text, arguments) __attribute__((__format__(__printf__, text, arguments)))
#define ORDAIN_NO_RETURN __attribute__((__noreturn__))
#define ORDAIN_MUST_USE __attribute__((__warn_unused_result__))
#define ORDAIN_MAYBE_UNUSED __attribute__((__unused__))
#else
#define ORDAIN_PRINTF(text, arguments)
#define ORDAIN_NO_RETURN
#define ORDAIN_MUST_USE
#define ORDAIN_MAYBE_UNUSED
#endif

#ifdef __cplusplus
#define ORDAIN_EXTERN_C extern "C"
extern "C" {
#else
#define ORDAIN_EXTERN_C
#endif
/** @endcond */

/** @name Events
 * @{ */

/** A sequence of bytes, or a text in UTF-8. */
typedef struct ordain_bytes {
  const char *ptr; /**< The first byte. Never NULL in values that the SDK returns. */
  size_t len;      /**< The number of bytes. */
} ordain_bytes;

/** A header of an event or of a message. */
typedef struct ordain_header {
  ordain_bytes name;  /**< The name. */
  ordain_bytes value; /**< The value. */
} ordain_header;

/** A list of headers, in their original order. */
typedef struct ordain_headers {
  const ordain_header *ptr; /**< The first header; without meaning if the list is empty. */
  size_t len;               /**< The number of headers. */
} ordain_headers;

/** A number that can be missing. */
typedef struct ordain_optional_u64 {
  bool has_value; /**< False if the number is missing. */
  uint64_t value; /**< The number; without meaning if the number is missing. */
} ordain_optional_u64;

/** A text that can be missing. */
typedef struct ordain_optional_text {
  bool has_value;     /**< False if the text is missing. */
  ordain_bytes value; /**< The text; without meaning if the text is missing. */
} ordain_optional_text;

/** An event. */
typedef struct ordain_event {
  ordain_bytes stream;         /**< Name of the stream. */
  ordain_bytes key;            /**< The unit of order: an order id, an account, a session. */
  uint64_t sequence;           /**< Number of the event within its key. */
  ordain_bytes id;             /**< Id of the event, set by the producer. */
  ordain_bytes type;           /**< Type of the event, for example `order.paid`. */
  ordain_bytes source;         /**< Name of the producer; can be empty. */
  ordain_optional_u64 time_ms; /**< Time of the event by the producer's clock, in ms since the Unix epoch. */
  ordain_bytes content_type;   /**< Media type of `data`; can be empty. */
  ordain_headers headers;      /**< The attributes of the event that have no field of their own here. */
  ordain_bytes data;           /**< The data of the event. */
  bool end_of_sequence;        /**< True if the producer marked the event as the last event of its key. */
} ordain_event;

/** @}
 * @name The handler
 * @{ */

/** The result of a call of the handler. */
typedef enum ordain_result {
  ORDAIN_OK = 0,     /**< The state and the messages take effect. */
  ORDAIN_REJECT = 1, /**< The event is rejected; see ordain_reject(). */
  ORDAIN_RETRY = 2,  /**< The event is retried; see ordain_retry(). */
  ORDAIN_FAULT = 3   /**< The call ended by ordain_fault(). Only tests receive this value. */
} ordain_result;

/**
 * Begins the handler: `ORDAIN_HANDLER(event, state) { ... return ORDAIN_OK; }`.
 *
 * `event` has the type `const ordain_event *`. `state` has the type `const ordain_bytes *`; it is NULL if the key has
 * no state. A program contains exactly one handler.
 */
#define ORDAIN_HANDLER(event, state)                                                                                   \
  ORDAIN_EXTERN_C ordain_result ordain_handle(const ordain_event *event ORDAIN_MAYBE_UNUSED,                           \
                                              const ordain_bytes *state ORDAIN_MAYBE_UNUSED)

/** The handler, which ORDAIN_HANDLER() defines. */
ordain_result ordain_handle(const ordain_event *event, const ordain_bytes *state);

/**
 * Rejects the event for good: `return ordain_reject("the balance is only %d", balance);`.
 *
 * The event becomes a dead letter with this reason. The key continues with its next event.
 */
ORDAIN_MUST_USE ORDAIN_PRINTF(1, 2) ordain_result ordain_reject(const char *format, ...);

/** Requests a retry of the event. The setting `retry.backoff` of the stream determines the delay. */
ORDAIN_MUST_USE ORDAIN_PRINTF(1, 2) ordain_result ordain_retry(const char *format, ...);

/** Requests a retry of the event after at least `delay_ms`. */
ORDAIN_MUST_USE ORDAIN_PRINTF(2, 3) ordain_result ordain_retry_after(uint64_t delay_ms, const char *format, ...);

/**
 * Ends the call because of a bug, and reports the message with the file, line and function of the call.
 *
 * Ordain repeats the call once with new memory, and then parks the key. A failed assert() has the same effect.
 */
#define ordain_fault(...) ordain_fault_at(__FILE__, __LINE__, __func__, __VA_ARGS__)

/** Ends the call because of a bug at a place in the code; ordain_fault() supplies the place. If `file` is NULL, the
 * message contains no place. */
ORDAIN_NO_RETURN ORDAIN_PRINTF(4, 5) void ordain_fault_at(const char *file, int line, const char *function,
                                                          const char *format, ...);

/** @}
 * @name The effect
 *
 * These functions describe the effect of the event. The effect is discarded unless the handler returns #ORDAIN_OK.
 * @{ */

/** A message to publish. The functions `ordain_message_*` change the message after ordain_emit(). */
typedef struct ordain_message {
  ordain_bytes sink;            /**< Name of a sink in the configuration of Ordain. */
  ordain_optional_text key;     /**< Key of the message. If it is missing, the message has the key of the event. */
  ordain_bytes type;            /**< Type of the message. */
  ordain_bytes content_type;    /**< Media type of `data`. */
  ordain_headers headers;       /**< The headers. */
  ordain_bytes data;            /**< The data. */
  ordain_optional_u64 delay_ms; /**< Minimum delay before the publishing. This release of Ordain refuses a delay. */
  bool end_of_sequence;         /**< True if the message is the last message of its key. The handler sets it. */
} ordain_message;

/** Keeps the state of the key. This is the default. */
void ordain_keep(void);

/**
 * Replaces the state of the key by a text: `ordain_put("{\"total\":%d}", total);`.
 *
 * The format inserts a text unchanged. Pass a text through ordain_quote() to write it as a JSON string.
 */
ORDAIN_PRINTF(1, 2) void ordain_put(const char *format, ...);

/** Replaces the state of the key by these bytes. */
void ordain_put_bytes(ordain_bytes state);

/** Deletes the state of the key: the next event of the key finds no state. */
void ordain_delete(void);

/** Ends the key after this event. Later events of the key become dead letters. */
void ordain_complete(void);

/**
 * Emits a message whose data is JSON: `ordain_emit("out", "counted", "{\"total\":%d}", total);`.
 *
 * Returns the message, which the handler can change until it returns. See ordain_put() for the format.
 */
ORDAIN_PRINTF(3, 4) ordain_message *ordain_emit(const char *sink, const char *type, const char *format, ...);

/** Emits a message with these bytes and this media type. Returns the message. */
ordain_message *ordain_emit_bytes(const char *sink, const char *type, const char *content_type, ordain_bytes data);

/** Sets the key of a message. */
ORDAIN_PRINTF(2, 3) void ordain_message_key(ordain_message *message, const char *format, ...);

/** Adds a header to a message. */
void ordain_message_header(ordain_message *message, ordain_bytes name, ordain_bytes value);

/** Sets the minimum delay between the commit and the publishing of a message. */
void ordain_message_delay(ordain_message *message, uint64_t delay_ms);

/** @}
 * @name Logging
 * @{ */

/** The level of a line in the log. */
typedef enum ordain_level {
  ORDAIN_TRACE = 0, /**< Each step, for the search for a fault. */
  ORDAIN_DEBUG = 1, /**< Details, for the development of the handler. */
  ORDAIN_INFO = 2,  /**< Normal events. */
  ORDAIN_WARN = 3,  /**< Unusual events that the handler can process. */
  ORDAIN_ERROR = 4  /**< Failures. */
} ordain_level;

/** Writes a line to the log of Ordain, which adds the stream, the key and the sequence. */
ORDAIN_PRINTF(2, 3) void ordain_log(ordain_level level, const char *format, ...);

/** @}
 * @name Text and memory
 * @{ */

/** Returns zeroed memory that is freed after the call. Ends the call as a fault if no memory is left. */
void *ordain_alloc(size_t size);

/** Returns a formatted text that is freed after the call. */
ORDAIN_PRINTF(1, 2) char *ordain_text(const char *format, ...);

/** Returns the bytes of a C string, without a copy. */
ordain_bytes ordain_bytes_from(const char *text);

/** Returns whether the bytes are equal to a C string. */
bool ordain_bytes_equal(ordain_bytes bytes, const char *text);

/** Returns a C string as a JSON string with its quotation marks: `a"b` becomes `"a\"b"`. */
const char *ordain_quote(const char *text);

/** Returns bytes as a JSON string with its quotation marks. */
const char *ordain_quote_bytes(ordain_bytes text);

/** @}
 * @name Reading JSON
 *
 * A handler reads all values first, and then checks once whether an error has occurred. A function that finds no
 * suitable value returns zero, false or an empty text, and the document keeps the first error.
 * @{ */

/** A value in a JSON document. */
typedef struct ordain_json {
  struct ordain_json_document *document; /**< The document. */
  const char *at;                        /**< The first character of the value; NULL if the value is missing. */
  const char *name;                      /**< Name of the value in its object; NULL if the value has no name. */
} ordain_json;

/** The kind of a JSON value. */
typedef enum ordain_json_type {
  ORDAIN_JSON_MISSING, /**< No value. */
  ORDAIN_JSON_NULL,    /**< `null`. */
  ORDAIN_JSON_BOOL,    /**< `true` or `false`. */
  ORDAIN_JSON_NUMBER,  /**< A number. */
  ORDAIN_JSON_STRING,  /**< A string. */
  ORDAIN_JSON_ARRAY,   /**< An array. */
  ORDAIN_JSON_OBJECT   /**< An object. */
} ordain_json_type;

/** Parses a JSON text (RFC 8259) with at most 128 levels. An empty text counts as `null`. The bytes are not copied. */
ordain_json ordain_json_parse(ordain_bytes text);

/** Returns the first error of the value's document: a syntax error, or a value that a function could not read. Returns
 * NULL if no error has occurred. */
const char *ordain_json_error(ordain_json json);

/** Returns the kind of a value. */
ordain_json_type ordain_json_kind(ordain_json json);

/** Returns whether an object has a member with this name that is not `null`. A missing value and `null` have no
 * members. A value of another kind is an error of the document. */
bool ordain_json_has(ordain_json object, const char *name);

/** Returns a member of an object. The result is missing if the object has no such member. If the object has several
 * members with this name, the function returns the last member. */
ordain_json ordain_json_get(ordain_json object, const char *name);

/** Returns a member that is an integer from 0 to 2^64 - 1, without loss. If `name` is NULL, the value itself is read.
 */
uint64_t ordain_json_u64(ordain_json json, const char *name);

/** Returns a member that is an integer from -2^63 to 2^63 - 1, without loss. `name` as in ordain_json_u64(). */
int64_t ordain_json_i64(ordain_json json, const char *name);

/** Returns a member that is a number. `name` as in ordain_json_u64(). */
double ordain_json_double(ordain_json json, const char *name);

/** Returns a member that is `true` or `false`. `name` as in ordain_json_u64(). */
bool ordain_json_bool(ordain_json json, const char *name);

/** Returns a member that is a string, without its escapes. `name` as in ordain_json_u64(). */
ordain_bytes ordain_json_text(ordain_json json, const char *name);

/** Returns the JSON text of a value, for example to pass the value on. Returns an empty text if it is missing. */
ordain_bytes ordain_json_raw(ordain_json json);

/**
 * Returns the first value of an array or of an object. The result is missing if the array or the object is empty. A
 * missing value, or a value of another kind, is an error of the document.
 *
 * @code
 * for (ordain_json item = ordain_json_first(list); item.at; item = ordain_json_next(item)) {
 *   total += ordain_json_u64(item, NULL);
 * }
 * @endcode
 */
ordain_json ordain_json_first(ordain_json container);

/** Returns the value after `item` in its array or object. The result is missing if `item` is the last value. */
ordain_json ordain_json_next(ordain_json item);

/** Rejects the event because its data does not decode. The reason contains the type of the event, the size and the
 * media type of the data, and the error of the document. */
ORDAIN_MUST_USE ordain_result ordain_reject_data(const ordain_event *event, ordain_json data);

/** Ends the call as a fault if the document of the state has an error. */
void ordain_check_state(ordain_json state);

/** @}
 * @name Writing JSON
 *
 * A writer adds commas, quotation marks and escapes. It begins as `ordain_writer out = {0};`. In an object, each value
 * needs a name. Outside of an object, `name` is NULL.
 * @{ */

/** A JSON text that grows. */
typedef struct ordain_writer {
  char *ptr;         /**< The text, without a NUL byte at its end. */
  size_t len;        /**< The number of bytes in the text. */
  size_t capacity;   /**< The number of bytes that `ptr` can hold. */
  uint64_t objects;  /**< The open levels that are objects, one bit each. */
  uint64_t nonempty; /**< The levels that contain a value, one bit each. */
  unsigned depth;    /**< The number of open levels, at most 63. */
} ordain_writer;

/** Opens an object. */
void ordain_write_object(ordain_writer *writer, const char *name);

/** Opens an array. */
void ordain_write_array(ordain_writer *writer, const char *name);

/** Closes the innermost open object or array. */
void ordain_write_end(ordain_writer *writer);

/** Writes a C string. Replaces each byte that is not UTF-8 by U+FFFD. */
void ordain_write_text(ordain_writer *writer, const char *name, const char *value);

/** Writes bytes as a string. Replaces each byte that is not UTF-8 by U+FFFD. */
void ordain_write_bytes(ordain_writer *writer, const char *name, ordain_bytes value);

/** Writes an unsigned integer. */
void ordain_write_u64(ordain_writer *writer, const char *name, uint64_t value);

/** Writes a signed integer. */
void ordain_write_i64(ordain_writer *writer, const char *name, int64_t value);

/** Writes a number with the fewest digits that preserve its value. An infinite number is a fault. */
void ordain_write_double(ordain_writer *writer, const char *name, double value);

/** Writes `true` or `false`. */
void ordain_write_bool(ordain_writer *writer, const char *name, bool value);

/** Writes `null`. */
void ordain_write_null(ordain_writer *writer, const char *name);

/** Writes a text that is JSON already, unchanged. */
void ordain_write_json(ordain_writer *writer, const char *name, ordain_bytes json);

/** Returns the JSON text. Ends the call as a fault if an object or an array is still open. */
ordain_bytes ordain_written(ordain_writer *writer);

/** @} */

#ifdef __cplusplus
}
#endif

#endif
