/**
 * @file ordain_testing.h
 * @brief Runs a handler natively, without a host.
 *
 * A runner passes the events of one key to the handler, and keeps the state from event to event, as Ordain does.
 *
 * @code
 * #include "ordain_testing.h"
 * #include <assert.h>
 *
 * int main(void) {
 *   ordain_runner *runner = ordain_runner_new();
 *   const ordain_outcome *outcome = ordain_runner_event(runner, "account.deposited", "{\"amount\":5}");
 *   assert(outcome->result == ORDAIN_OK);
 *   assert(ordain_bytes_equal(outcome->messages[0].data, "{\"balance\":5}"));
 *   assert(strcmp(ordain_runner_state(runner), "{\"balance\":5}") == 0);
 *   ordain_runner_free(runner);
 * }
 * @endcode
 *
 * Compile the handler, the test and the files of the SDK with a native compiler. With `-fsanitize=address,undefined`,
 * the test also detects invalid accesses to memory, because each allocation of the SDK then has its own block.
 */
#ifndef ORDAIN_TESTING_H
#define ORDAIN_TESTING_H

#include "ordain.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The change of a key's state. */
typedef enum ordain_change {
  ORDAIN_KEPT = 0,   /**< The state stays the same. */
  ORDAIN_PUT = 1,    /**< The state is replaced. */
  ORDAIN_DELETED = 2 /**< The state is removed. */
} ordain_change;

/** The end of a call of the handler. */
typedef struct ordain_outcome {
  ordain_result result;               /**< #ORDAIN_FAULT if the handler called ordain_fault(). */
  const char *reason;                 /**< The reason of a rejection, a retry or a fault; otherwise empty. */
  ordain_optional_u64 retry_after_ms; /**< The delay of ordain_retry_after(). */
  ordain_change change;               /**< The change of the state. */
  ordain_bytes state;                 /**< The new state, if `change` is #ORDAIN_PUT. */
  const ordain_message *messages;     /**< The messages, in the order in which the handler emitted them. */
  size_t message_count;               /**< The number of messages. */
  bool complete;                      /**< True if the handler called ordain_complete(). */
} ordain_outcome;

/** A handler with the state and the next sequence of one key. */
typedef struct ordain_runner ordain_runner;

/** Creates a runner for a key without state, whose next sequence is 1. */
ordain_runner *ordain_runner_new(void);

/** Frees a runner, and the memory of the newest outcome. Accepts NULL. */
void ordain_runner_free(ordain_runner *runner);

/**
 * Passes the next event of the key to the handler. `data` is a C string.
 *
 * The outcome and all memory of the SDK remain valid until the next call of a handler, or until the runner is freed.
 */
const ordain_outcome *ordain_runner_event(ordain_runner *runner, const char *type, const char *data);

/** Returns the next event without passing it to the handler, so that the test can change it before
 * ordain_runner_send(). The runner keeps a copy of the data; the event also refers to `type`. */
ordain_event ordain_runner_next(ordain_runner *runner, const char *type, const char *data);

/**
 * Passes an event to the handler.
 *
 * A retry or a fault leaves the runner unchanged. Any other result settles the event: the next event has the next
 * sequence. The function aborts the test if the key has ended, because Ordain passes no more events of such a key to
 * the handler.
 */
const ordain_outcome *ordain_runner_send(ordain_runner *runner, const ordain_event *event);

/** Returns the current state as a C string; NULL if the key has no state. */
const char *ordain_runner_state(const ordain_runner *runner);

/** Sets the current state. NULL removes the state. */
void ordain_runner_set_state(ordain_runner *runner, const char *state);

/** Sets the current state to bytes that can contain a NUL. */
void ordain_runner_set_state_bytes(ordain_runner *runner, ordain_bytes state);

/** Returns whether an event or an outcome has ended the key. */
bool ordain_runner_ended(const ordain_runner *runner);

#ifdef __cplusplus
}
#endif

#endif
