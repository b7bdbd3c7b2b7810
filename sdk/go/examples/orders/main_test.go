package main

import (
	"slices"
	"strings"
	"testing"

	"ordain"
)

// table contains the valid steps, written independently of the code. In the last row, the order was cancelled after it
// was paid.
var table = map[Status][]Status{
	"":          {"created"},
	"created":   {"paid", "cancelled"},
	"paid":      {"packed", "cancelled"},
	"packed":    {"shipped", "cancelled"},
	"shipped":   {"delivered"},
	"delivered": {"refunded"},
	"refunded":  {},
	"cancelled": {"refunded"},
}

type object map[string]any

type runner = ordain.Runner[*Details, Order]

func runnerAt(status Status) *runner {
	run := ordain.NewRunner(handle)
	if status != "" {
		run.WithState(Order{status, 1200})
	}
	return run
}

func mustHandle(t *testing.T, run *runner, kind string, data any) *ordain.Outcome[ordain.Raw] {
	t.Helper()
	outcome, err := run.Event(kind, data)
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	return outcome
}

func expectRejection(t *testing.T, run *runner, kind string, data any, reason string) {
	t.Helper()
	_, err := run.Event(kind, data)
	if err == nil || ordain.FailureOf(err).Retry || !strings.Contains(err.Error(), reason) {
		t.Errorf("%s: %v, expected a rejection with %q", kind, err, reason)
	}
}

func TestOnlyValidStepsAreAccepted(t *testing.T) {
	for from, allowed := range table {
		for _, to := range statuses {
			run := runnerAt(from)
			before := run.State()
			outcome, err := run.Event("order."+string(to), object{"amount_cents": 1200, "pad": "xxxx"})
			after := run.State()
			if !slices.Contains(allowed, to) {
				if err == nil || ordain.FailureOf(err).Retry {
					t.Errorf("%q to %q: %v, expected a rejection", from, to, err)
				}
				if (before == nil) != (after == nil) || (before != nil && *before != *after) {
					t.Errorf("%q to %q: a rejection changed %v to %v", from, to, before, after)
				}
				continue
			}
			if err != nil {
				t.Errorf("%q to %q: %v", from, to, err)
				continue
			}
			ends := to == "refunded" || (from == "created" && to == "cancelled")
			if outcome.Completes != ends || (after == nil) != ends {
				t.Errorf("%q to %q: completes %v, state %v", from, to, outcome.Completes, after)
			}
			if !ends && *after != (Order{to, 1200}) {
				t.Errorf("%q to %q: state %v", from, to, after)
			}
			emits := to != "created" && to != "packed"
			if (len(outcome.Messages) == 1) != emits {
				t.Errorf("%q to %q: messages %v", from, to, outcome.Messages)
			}
		}
	}
}

func TestUnpaidOrderCanBeUpdated(t *testing.T) {
	run := ordain.NewRunner(handle)
	mustHandle(t, run, "order.created", object{"amount_cents": 900})
	same := mustHandle(t, run, "order.updated", object{"amount_cents": 900})
	if len(same.Messages) != 0 || same.Change != ordain.ChangeNone {
		t.Errorf("an update without a change had an effect: %+v", same)
	}
	changed := mustHandle(t, run, "order.updated", object{"amount_cents": 950})
	if data := changed.Messages[0].Data.String(); data != `{"order":"key","status":"created","amount_cents":950}` {
		t.Error(data)
	}
	if state := *run.State(); state != (Order{"created", 950}) {
		t.Error(state)
	}
	expectRejection(t, run, "order.updated", nil, `updating an order requires "amount_cents" in the data`)
	mustHandle(t, run, "order.paid", object{})
	expectRejection(t, run, "order.updated", object{"amount_cents": 1}, "only a created order that is not yet paid")
}

func TestOrderIsProcessedFromCreationToRefund(t *testing.T) {
	run := ordain.NewRunner(handle)
	mustHandle(t, run, "order.created", object{"amount_cents": 900, "items": []string{"book"}})
	receipt := mustHandle(t, run, "shop.order.paid", object{"by": "card"}).Messages[0]
	if receipt.Sink != "receipts" || receipt.Type != "order.paid" || receipt.ContentType != "application/json" {
		t.Error(receipt)
	}
	if receipt.Data.String() != `{"order":"key","status":"paid","amount_cents":900}` {
		t.Error(receipt.Data)
	}
	mustHandle(t, run, "packed", nil)
	mustHandle(t, run, "order.shipped", object{})
	delivered := mustHandle(t, run, "order.delivered", object{})
	if delivered.Completes || delivered.Messages[0].EndOfSequence {
		t.Error(delivered)
	}
	refunded := mustHandle(t, run, "order.refunded", object{"why": "broken"})
	if !refunded.Completes || !refunded.Messages[0].EndOfSequence || run.State() != nil {
		t.Error(refunded, run.State())
	}
}

func TestLastEventEndsTheReceipts(t *testing.T) {
	run := runnerAt("shipped")
	event := run.NextEvent("order.delivered", object{})
	event.EndOfSequence = true
	outcome, err := run.Send(event)
	if err != nil || !outcome.Messages[0].EndOfSequence {
		t.Error(outcome, err)
	}
}

func TestRejectionNamesTheValidSteps(t *testing.T) {
	expectRejection(t, runnerAt("paid"), "order.shipped", nil,
		"an order that is paid cannot be shipped: it can be packed or cancelled")
	expectRejection(t, runnerAt(""), "order.paid", nil,
		"an order that does not exist cannot be paid: it must be created first")
	expectRejection(t, runnerAt(""), "order.lost", nil,
		`"order.lost" is not a step of an order: the type must end in created or paid or packed or shipped or delivered `+
			"or cancelled or refunded")
	expectRejection(t, runnerAt(""), "order.created", object{}, `creating an order requires "amount_cents" in the data`)
	expectRejection(t, runnerAt(""), "order.created", object{"amount_cents": -1}, "cannot unmarshal number -1")
	expectRejection(t, runnerAt(""), "order.created", ordain.Raw("not JSON"), "invalid character 'o'")
}
