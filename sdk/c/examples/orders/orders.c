/*
 * The lifecycle of an order. Each key is an order.
 *
 * The part of an event's type after the last dot names the new status: `order.paid` makes the order *paid*. The valid
 * steps are:
 *
 * | status                         | next status                           |
 * |--------------------------------|---------------------------------------|
 * | no order                       | created                               |
 * | created                        | paid, or cancelled (ends the key)     |
 * | paid                           | packed, cancelled                     |
 * | packed                         | shipped, cancelled                    |
 * | shipped                        | delivered                             |
 * | delivered                      | refunded (ends the key)               |
 * | cancelled after it was paid    | refunded (ends the key)               |
 *
 * A created order can also be updated, any number of times: `order.updated` changes the amount and keeps the status.
 * The handler rejects all other events. The reason of the rejection names the valid steps.
 *
 * The data is empty or a JSON object. `order.created` and `order.updated` require the field `amount_cents`, a whole
 * number of at least 0. The handler rejects any event with an invalid `amount_cents`.
 *
 * The handler emits a message to the sink `receipts` when an order is paid, shipped, delivered, cancelled or refunded,
 * and when an update changes its amount. The type of the message is `order.STATUS` or `order.updated`; the data is
 * `{"order": KEY, "status": …, "amount_cents": …}`.
 */
#include "ordain.h"

#include <string.h>

#define SINK "receipts"

typedef enum order_status {
  NO_ORDER,
  CREATED,
  PAID,
  PACKED,
  SHIPPED,
  DELIVERED,
  CANCELLED,
  REFUNDED,
  STATUS_COUNT
} order_status;

/* The name of each status, and of the step that leads to it. */
static const char *const NAMES[STATUS_COUNT] = {NULL,      "created",   "paid",      "packed",
                                                "shipped", "delivered", "cancelled", "refunded"};

/* The next statuses of each status, one bit each. */
static const unsigned NEXT[STATUS_COUNT] = {
    [NO_ORDER] = 1u << CREATED,
    [CREATED] = 1u << PAID | 1u << CANCELLED,
    [PAID] = 1u << PACKED | 1u << CANCELLED,
    [PACKED] = 1u << SHIPPED | 1u << CANCELLED,
    [SHIPPED] = 1u << DELIVERED,
    [DELIVERED] = 1u << REFUNDED,
    [CANCELLED] = 1u << REFUNDED,
};

#define ANY_STATUS ((1u << STATUS_COUNT) - (1u << CREATED))

/* The statuses that a message reports. */
#define REPORTED (1u << PAID | 1u << SHIPPED | 1u << DELIVERED | 1u << CANCELLED | 1u << REFUNDED)

static bool contains(unsigned statuses, order_status which) { return statuses >> which & 1; }

/* Returns the status with a name; NO_ORDER if no status has the name. */
static order_status status_of(const char *name) {
  for (order_status status = CREATED; status < STATUS_COUNT; status++) {
    if (strcmp(NAMES[status], name) == 0) return status;
  }
  return NO_ORDER;
}

/* Returns the names of the statuses: `paid or cancelled`. */
static const char *any_of(unsigned statuses) {
  const char *text = "";
  for (order_status status = CREATED; status < STATUS_COUNT; status++) {
    if (contains(statuses, status)) text = ordain_text("%s%s%s", text, *text ? " or " : "", NAMES[status]);
  }
  return text;
}

typedef struct order_state {
  order_status status;
  uint64_t amount_cents;
} order_state;

static order_state read_order(const ordain_bytes *state) {
  order_state order = {NO_ORDER, 0};
  if (!state) return order;
  ordain_json json = ordain_json_parse(*state);
  ordain_bytes name = ordain_json_text(json, "status");
  order.amount_cents = ordain_json_u64(json, "amount_cents");
  ordain_check_state(json);
  order.status = status_of(name.ptr);
  if (order.status == NO_ORDER) ordain_fault("the state has the unknown status %s", ordain_quote_bytes(name));
  return order;
}

static void put_order(order_state order) {
  ordain_put("{\"status\":\"%s\",\"amount_cents\":%" PRIu64 "}", NAMES[order.status], order.amount_cents);
}

static void emit_receipt(const ordain_event *event, const char *step, order_state order, bool is_last) {
  ordain_message *message =
      ordain_emit(SINK, ordain_text("order.%s", step), "{\"order\":%s,\"status\":\"%s\",\"amount_cents\":%" PRIu64 "}",
                  ordain_quote_bytes(event->key), NAMES[order.status], order.amount_cents);
  message->end_of_sequence = is_last;
}

static ordain_result update(const ordain_event *event, ordain_json data, order_state order) {
  if (order.status != CREATED) return ordain_reject("only a created order that is not yet paid can be updated");
  if (!ordain_json_has(data, "amount_cents")) {
    return ordain_reject("updating an order requires \"amount_cents\" in the data");
  }
  uint64_t amount_cents = ordain_json_u64(data, "amount_cents");
  if (amount_cents == order.amount_cents) return ORDAIN_OK;
  order.amount_cents = amount_cents;
  put_order(order);
  emit_receipt(event, "updated", order, event->end_of_sequence);
  return ORDAIN_OK;
}

static ordain_result reject_step(order_status from, order_status to) {
  if (from == NO_ORDER) {
    return ordain_reject("an order that does not exist cannot be %s: it must be %s first", NAMES[to],
                         any_of(NEXT[from]));
  }
  return ordain_reject("an order that is %s cannot be %s: it can be %s", NAMES[from], NAMES[to], any_of(NEXT[from]));
}

ORDAIN_HANDLER(event, state) {
  ordain_json data = ordain_json_parse(event->data);
  if (ordain_json_has(data, "amount_cents")) (void)ordain_json_u64(data, "amount_cents");
  if (ordain_json_error(data)) return ordain_reject_data(event, data);

  const char *dot = strrchr(event->type.ptr, '.');
  const char *step = dot ? dot + 1 : event->type.ptr;
  order_state order = read_order(state);
  if (strcmp(step, "updated") == 0) return update(event, data, order);

  order_status from = order.status;
  order_status to = status_of(step);
  if (to == NO_ORDER) {
    return ordain_reject("%s is not a step of an order: the type must end in %s", ordain_quote_bytes(event->type),
                         any_of(ANY_STATUS));
  }
  if (!contains(NEXT[from], to)) return reject_step(from, to);
  if (from == NO_ORDER) {
    if (!ordain_json_has(data, "amount_cents")) {
      return ordain_reject("creating an order requires \"amount_cents\" in the data");
    }
    order.amount_cents = ordain_json_u64(data, "amount_cents");
  }

  order.status = to;
  bool is_end = to == REFUNDED || (from == CREATED && to == CANCELLED);
  if (contains(REPORTED, to)) emit_receipt(event, step, order, is_end || event->end_of_sequence);
  if (is_end) {
    ordain_delete();
    ordain_complete();
  } else {
    put_order(order);
  }
  return ORDAIN_OK;
}
