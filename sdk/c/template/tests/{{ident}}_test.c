#include "ordain_testing.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static void withdrawal_reduces_the_balance(void) {
  ordain_runner *runner = ordain_runner_new();
  ordain_runner_event(runner, "account.deposited", "{\"amount_cents\":500}");
  const ordain_outcome *outcome = ordain_runner_event(runner, "account.withdrawn", "{\"amount_cents\":200}");
  assert(outcome->result == ORDAIN_OK && outcome->message_count == 1);
  assert(ordain_bytes_equal(outcome->messages[0].data, "{\"balance_cents\":300}"));
  assert(strcmp(ordain_runner_state(runner), "{\"balance_cents\":300}") == 0);
  ordain_runner_free(runner);
}

static void withdrawal_beyond_the_balance_is_rejected(void) {
  ordain_runner *runner = ordain_runner_new();
  const ordain_outcome *outcome = ordain_runner_event(runner, "account.withdrawn", "{\"amount_cents\":1}");
  assert(outcome->result == ORDAIN_REJECT);
  assert(strcmp(outcome->reason, "the balance is only 0 cents") == 0);
  assert(!ordain_runner_state(runner));
  ordain_runner_free(runner);
}

static void data_without_an_amount_is_rejected(void) {
  ordain_runner *runner = ordain_runner_new();
  const ordain_outcome *outcome = ordain_runner_event(runner, "account.deposited", "{}");
  assert(outcome->result == ORDAIN_REJECT && strstr(outcome->reason, "missing field `amount_cents`"));
  ordain_runner_free(runner);
}

int main(void) {
  withdrawal_reduces_the_balance();
  withdrawal_beyond_the_balance_is_rejected();
  data_without_an_amount_is_rejected();
  puts("all tests passed");
}
