/*
 * Tests of each step from each status, and of whole lifecycles.
 */
#undef NDEBUG
#include "ordain_testing.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static const char *const STATUSES[] = {"created", "paid", "packed", "shipped", "delivered", "cancelled", "refunded"};
#define STATUS_COUNT (sizeof STATUSES / sizeof *STATUSES)

/* The valid steps, written independently of the code. In the last row, the order was cancelled after it was paid. */
static const struct {
  const char *from;
  const char *next;
} STEPS[] = {
    {NULL, "created"},
    {"created", "paid cancelled"},
    {"paid", "packed cancelled"},
    {"packed", "shipped cancelled"},
    {"shipped", "delivered"},
    {"delivered", "refunded"},
    {"refunded", ""},
    {"cancelled", "refunded"},
};

static const char *state_text(char *buffer, size_t size, const char *status) {
  snprintf(buffer, size, "{\"status\":\"%s\",\"amount_cents\":1200}", status);
  return buffer;
}

static void check_step(const char *from, const char *to, bool is_valid) {
  ordain_runner *runner = ordain_runner_new();
  char before[80], after[80], type[32];
  if (from) ordain_runner_set_state(runner, state_text(before, sizeof before, from));
  snprintf(type, sizeof type, "order.%s", to);
  const ordain_outcome *outcome = ordain_runner_event(runner, type, "{\"amount_cents\":1200,\"pad\":\"xxxx\"}");
  const char *state = ordain_runner_state(runner);
  if (is_valid) {
    bool is_end = strcmp(to, "refunded") == 0 || (from && strcmp(from, "created") == 0 && strcmp(to, "cancelled") == 0);
    bool is_silent = strcmp(to, "created") == 0 || strcmp(to, "packed") == 0;
    assert(outcome->result == ORDAIN_OK);
    assert(outcome->complete == is_end);
    assert(outcome->message_count == (is_silent ? 0 : 1));
    assert(is_end ? !state : strcmp(state, state_text(after, sizeof after, to)) == 0);
  } else {
    assert(outcome->result == ORDAIN_REJECT);
    assert(from ? strcmp(state, before) == 0 : !state);
  }
  ordain_runner_free(runner);
}

static void only_valid_steps_are_accepted(void) {
  for (size_t row = 0; row < sizeof STEPS / sizeof *STEPS; row++) {
    for (size_t to = 0; to < STATUS_COUNT; to++) {
      check_step(STEPS[row].from, STATUSES[to], strstr(STEPS[row].next, STATUSES[to]) != NULL);
    }
  }
}

static void unpaid_order_can_be_updated(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_event(runner, "order.created", "{\"amount_cents\":900}");
  const ordain_outcome *same = ordain_runner_event(runner, "order.updated", "{\"amount_cents\":900}");
  assert(same->result == ORDAIN_OK && same->change == ORDAIN_KEPT && same->message_count == 0);
  const ordain_outcome *changed = ordain_runner_event(runner, "order.updated", "{\"amount_cents\":950}");
  assert(ordain_bytes_equal(changed->messages[0].type, "order.updated"));
  assert(
      ordain_bytes_equal(changed->messages[0].data, "{\"order\":\"key\",\"status\":\"created\",\"amount_cents\":950}"));
  assert(strcmp(ordain_runner_state(runner), "{\"status\":\"created\",\"amount_cents\":950}") == 0);
  ordain_runner_event(runner, "order.paid", "{}");
  assert(ordain_runner_event(runner, "order.updated", "{\"amount_cents\":1}")->result == ORDAIN_REJECT);
  ordain_runner_free(runner);
}

static void order_is_processed_from_creation_to_refund(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_event(runner, "order.created", "{\"amount_cents\":900,\"items\":[\"book\"]}");
  const ordain_outcome *paid = ordain_runner_event(runner, "shop.order.paid", "{\"by\":\"card\"}");
  assert(paid->message_count == 1);
  assert(ordain_bytes_equal(paid->messages[0].sink, "receipts"));
  assert(ordain_bytes_equal(paid->messages[0].type, "order.paid"));
  assert(ordain_bytes_equal(paid->messages[0].data, "{\"order\":\"key\",\"status\":\"paid\",\"amount_cents\":900}"));
  assert(ordain_runner_event(runner, "packed", "")->result == ORDAIN_OK);
  ordain_runner_event(runner, "order.shipped", "{}");
  const ordain_outcome *delivered = ordain_runner_event(runner, "order.delivered", "{}");
  assert(!delivered->complete && !delivered->messages[0].end_of_sequence);
  const ordain_outcome *refunded = ordain_runner_event(runner, "order.refunded", "{\"why\":\"broken\"}");
  assert(refunded->complete && refunded->messages[0].end_of_sequence);
  assert(!ordain_runner_state(runner) && ordain_runner_ended(runner));
  ordain_runner_free(runner);
}

static void last_event_ends_the_receipts(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_set_state(runner, "{\"status\":\"shipped\",\"amount_cents\":1}");
  ordain_event event = ordain_runner_next(runner, "order.delivered", "{}");
  event.end_of_sequence = true;
  assert(ordain_runner_send(runner, &event)->messages[0].end_of_sequence);
  ordain_runner_free(runner);
}

static void check_reason(const char *state, const char *type, const char *data, const char *expected) {
  ordain_runner *runner = ordain_runner_new();
  if (state) ordain_runner_set_state(runner, state);
  const ordain_outcome *outcome = ordain_runner_event(runner, type, data);
  assert(outcome->result == ORDAIN_REJECT);
  if (!strstr(outcome->reason, expected)) fprintf(stderr, "%s\n", outcome->reason);
  assert(strstr(outcome->reason, expected));
  ordain_runner_free(runner);
}

static void rejection_names_the_valid_steps(void) {
  const char *paid = "{\"status\":\"paid\",\"amount_cents\":1}";
  check_reason(paid, "order.shipped", "{}", "an order that is paid cannot be shipped: it can be packed or cancelled");
  check_reason(NULL, "order.paid", "{}", "an order that does not exist cannot be paid: it must be created first");
  check_reason(NULL, "order.lost", "{}",
               "\"order.lost\" is not a step of an order: the type must end in created or paid or packed or shipped or "
               "delivered or cancelled or refunded");
  check_reason(NULL, "order.created", "{}", "creating an order requires \"amount_cents\" in the data");
  check_reason(NULL, "order.created", "{\"amount_cents\":-1}", "found `-1` at line 1 column 17");
  check_reason(paid, "order.packed", "[]", "cannot be decoded: expected an object, found `[]`");
  check_reason(NULL, "order.created", "not JSON",
               "the data of this event of type \"order.created\" (8 bytes of \"application/json\") cannot be decoded: "
               "expected a JSON value at line 1 column 1");
}

static void unreadable_state_is_a_fault(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_set_state(runner, "abc");
  const ordain_outcome *outcome = ordain_runner_event(runner, "order.paid", "{}");
  assert(outcome->result == ORDAIN_FAULT);
  assert(strstr(outcome->reason, "the state of this key (3 bytes) cannot be decoded"));
  ordain_runner_free(runner);
}

int main(void) {
  only_valid_steps_are_accepted();
  unpaid_order_can_be_updated();
  order_is_processed_from_creation_to_refund();
  last_event_ends_the_receipts();
  rejection_names_the_valid_steps();
  unreadable_state_is_a_fault();
  puts("all tests passed");
}
