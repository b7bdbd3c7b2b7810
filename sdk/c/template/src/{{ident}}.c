/*
 * The balance of an account. Each key is an account.
 *
 * `account.deposited` and `account.withdrawn` change the balance by the field `amount_cents` of the data. The handler
 * rejects a withdrawal that exceeds the balance. Each change emits `account.changed` to the sink `changes`.
 */
#include "ordain.h"

static uint64_t read_balance(const ordain_bytes *state) {
  if (!state) return 0;
  ordain_json account = ordain_json_parse(*state);
  uint64_t balance_cents = ordain_json_u64(account, "balance_cents");
  ordain_check_state(account);
  return balance_cents;
}

ORDAIN_HANDLER(event, state) {
  ordain_json data = ordain_json_parse(event->data);
  uint64_t amount_cents = ordain_json_u64(data, "amount_cents");
  if (ordain_json_error(data)) return ordain_reject_data(event, data);

  uint64_t balance_cents = read_balance(state);
  if (ordain_bytes_equal(event->type, "account.deposited")) {
    if (amount_cents > UINT64_MAX - balance_cents) return ordain_reject("the balance is too large");
    balance_cents += amount_cents;
  } else if (ordain_bytes_equal(event->type, "account.withdrawn")) {
    if (amount_cents > balance_cents) return ordain_reject("the balance is only %" PRIu64 " cents", balance_cents);
    balance_cents -= amount_cents;
  } else {
    return ordain_reject("unknown type %s", event->type.ptr);
  }

  ordain_put("{\"balance_cents\":%" PRIu64 "}", balance_cents);
  ordain_emit("changes", "account.changed", "{\"balance_cents\":%" PRIu64 "}", balance_cents);
  return ORDAIN_OK;
}
