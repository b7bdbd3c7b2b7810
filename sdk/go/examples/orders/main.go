// Orders is a handler for the lifecycle of an order. Each key is an order.
//
// The part of an event's type after the last dot names the new status: "order.paid" makes the order paid. The valid
// steps are:
//
//	status                      next status
//	no order                    created
//	created                     paid, or cancelled (ends the key)
//	paid                        packed, cancelled
//	packed                      shipped, cancelled
//	shipped                     delivered
//	delivered                   refunded (ends the key)
//	cancelled after it was paid refunded (ends the key)
//
// A created order can also be updated, any number of times: "order.updated" changes the amount and keeps the status.
//
// The handler rejects all other events. The reason of the rejection names the valid steps. A delivered order can still
// be refunded. The handler therefore keeps the order until an event refunds it, or until the producer marks an event as
// the last event of the order.
//
// The data is empty or a JSON object. "order.created" and "order.updated" require the field amount_cents. The handler
// emits a message to the sink "receipts" when an order is paid, shipped, delivered, cancelled or refunded, and when an
// update changes its amount.
package main

import (
	"slices"
	"strings"

	"ordain"
)

// The commands that build orders.wasm.
//
//go:generate env GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath "-ldflags=-s -w" -o orders.core.wasm .
//go:generate ordain plugins wrap orders.core.wasm -o orders.wasm

// sink is the sink of all messages.
const sink = "receipts"

// Details are the fields of an event's data that the handler reads.
type Details struct {
	AmountCents *uint64 `json:"amount_cents"`
}

// Order is the state of a key. A step that ends the order removes the state.
type Order struct {
	Status      Status `json:"status"`
	AmountCents uint64 `json:"amount_cents"`
}

// Receipt is the data of a message.
type Receipt struct {
	Order       string `json:"order"`
	Status      Status `json:"status"`
	AmountCents uint64 `json:"amount_cents"`
}

// Status is the status of an order, and the step that leads to it.
type Status string

const (
	created   Status = "created"
	paid      Status = "paid"
	packed    Status = "packed"
	shipped   Status = "shipped"
	delivered Status = "delivered"
	cancelled Status = "cancelled"
	refunded  Status = "refunded"
)

// absent is the status of an order that does not exist.
const absent Status = ""

// updated is the step that keeps the status of an order.
const updated = "updated"

// statuses are all statuses, in the order in which a rejection names them.
var statuses = []Status{created, paid, packed, shipped, delivered, cancelled, refunded}

// nextStatuses are the valid steps from each status, in the order of statuses.
var nextStatuses = map[Status][]Status{
	absent:    {created},
	created:   {paid, cancelled},
	paid:      {packed, cancelled},
	packed:    {shipped, cancelled},
	shipped:   {delivered},
	delivered: {refunded},
	cancelled: {refunded},
}

func handle(event ordain.Event[*Details], order *Order) (*ordain.Outcome[Order], error) {
	step := stepOf(event.Type)
	if step == updated {
		return update(event, order)
	}
	from := absent
	if order != nil {
		from = order.Status
	}
	to := Status(step)
	if !slices.Contains(statuses, to) {
		return nil, ordain.Reject("%q is not a step of an order: the type must end in %s", event.Type, anyOf(statuses))
	}
	if !slices.Contains(nextStatuses[from], to) {
		return nil, impossible(from, to)
	}
	after := Order{Status: to}
	switch {
	case order != nil:
		after.AmountCents = order.AmountCents
	case event.Data == nil || event.Data.AmountCents == nil:
		return nil, ordain.Reject(`creating an order requires "amount_cents" in the data`)
	default:
		after.AmountCents = *event.Data.AmountCents
	}

	ends := to == refunded || (from == created && to == cancelled)
	outcome := ordain.Put(after)
	if ends {
		outcome = ordain.Delete[Order]().Complete()
	}
	if to != created && to != packed {
		outcome.EmitMessages(receipt(event, after, "order."+step).WithEndOfSequence(ends || event.EndOfSequence))
	}
	return outcome, nil
}

func update(event ordain.Event[*Details], order *Order) (*ordain.Outcome[Order], error) {
	if order == nil || order.Status != created {
		return nil, ordain.Reject("only a created order that is not yet paid can be updated")
	}
	if event.Data == nil || event.Data.AmountCents == nil {
		return nil, ordain.Reject(`updating an order requires "amount_cents" in the data`)
	}
	after := Order{Status: created, AmountCents: *event.Data.AmountCents}
	if after == *order {
		return ordain.Keep[Order](), nil
	}
	message := receipt(event, after, "order.updated").WithEndOfSequence(event.EndOfSequence)
	return ordain.Put(after).EmitMessages(message), nil
}

// stepOf returns the step that the type of an event names.
func stepOf(kind string) string {
	return kind[strings.LastIndex(kind, ".")+1:]
}

func receipt(event ordain.Event[*Details], order Order, kind string) ordain.Message {
	return ordain.NewMessage(sink, kind, Receipt{event.Key, order.Status, order.AmountCents})
}

func impossible(from, to Status) error {
	next := anyOf(nextStatuses[from])
	if from == absent {
		return ordain.Reject("an order that does not exist cannot be %s: it must be %s first", to, next)
	}
	return ordain.Reject("an order that is %s cannot be %s: it can be %s", from, to, next)
}

func anyOf(choices []Status) string {
	names := make([]string, len(choices))
	for i, choice := range choices {
		names[i] = string(choice)
	}
	return strings.Join(names, " or ")
}

func init() { ordain.Handle(handle) }

func main() {}
