package ordain_test

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ordain"
)

// Change is the data of the events "account.deposited" and "account.withdrawn".
type Change struct {
	AmountCents int64 `json:"amount_cents"`
}

// Account is the state of a key.
type Account struct {
	BalanceCents int64 `json:"balance_cents"`
}

func account(event ordain.Event[Change], account *Account) (*ordain.Outcome[Account], error) {
	if account == nil {
		account = &Account{}
	}
	switch event.Type {
	case "account.deposited":
		account.BalanceCents += event.Data.AmountCents
	case "account.withdrawn":
		account.BalanceCents -= event.Data.AmountCents
	default:
		return nil, ordain.Reject("unknown type %q", event.Type)
	}
	if account.BalanceCents < 0 {
		return nil, ordain.Reject("the account has %d cents too few", -account.BalanceCents)
	}
	return ordain.Put(*account).Emit("changes", "account.changed", account), nil
}

// A program calls Handle in its function init:
//
//	func init() { ordain.Handle(account) }
//
//	func main() {}
//
// A test runs the same function by a [Runner].
func Example() {
	run := ordain.NewRunner(account)
	outcome, err := run.Event("account.deposited", Change{AmountCents: 500})
	fmt.Println(outcome.Messages[0].Data, err)
	_, err = run.Event("account.withdrawn", Change{AmountCents: 700})
	fmt.Println(err)
	fmt.Println(*run.State())
	// Output:
	// {"balance_cents":500} <nil>
	// the account has 200 cents too few
	// {500}
}

// The type of an event selects the type of its data.
func ExampleDecode() {
	type Renamed struct {
		Name string `json:"name"`
	}
	type Paid struct {
		Cents uint64 `json:"cents"`
	}
	handle := func(event ordain.Event[ordain.Raw], _ *Account) (*ordain.Outcome[Account], error) {
		switch event.Type {
		case "renamed":
			renamed, err := ordain.Decode[Renamed](event)
			if err != nil {
				return nil, err
			}
			return ordain.Keep[Account]().Emit("out", "greeting", "Hello "+renamed.Data.Name), nil
		case "paid":
			paid, err := ordain.Decode[Paid](event)
			if err != nil {
				return nil, err
			}
			return ordain.Keep[Account]().Emit("out", "receipt", paid.Data.Cents), nil
		default:
			return nil, ordain.Reject("unknown type %q", event.Type)
		}
	}
	run := ordain.NewRunner(handle)
	outcome, _ := run.Event("renamed", ordain.Raw(`{"name":"Ana"}`))
	fmt.Println(outcome.Messages[0].Data)
	_, err := run.Event("paid", ordain.Raw(`{"cents":-1}`))
	fmt.Println(err)
	// Output:
	// "Hello Ana"
	// the data of this event of type "paid" (12 bytes of "application/json") cannot be decoded: json: cannot unmarshal number -1 into Go struct field Paid.cents of type uint64
}

// A message can have its own key, headers, and any data.
func ExampleNewMessage() {
	message := ordain.NewMessage("invoices", "invoice.printed", ordain.Raw("%PDF-1.7")).
		WithContentType("application/pdf").
		WithKey("customer-7").
		WithHeader("language", "en").
		WithEndOfSequence(true)
	outcome := ordain.Keep[Account]().EmitMessages(message)
	fmt.Println(*outcome.Messages[0].Key, outcome.Messages[0].Data, outcome.Messages[0].Headers)
	// Output:
	// customer-7 %PDF-1.7 [{language en}]
}

// An error that wraps the error of Retry is a retry too.
func ExampleRetry() {
	load := func() error { return ordain.Retry("no rate for %s", "EUR") }
	err := fmt.Errorf("the price: %w", load())
	fmt.Println(ordain.FailureOf(err).Retry, err)
	// Output:
	// true the price: no rate for EUR
}

func ExampleRetryAfter() {
	failure := ordain.FailureOf(ordain.RetryAfter(time.Minute, "no rate for %s", "EUR"))
	fmt.Println(failure.Retry, failure.After, failure.Reason)
	// Output:
	// true 1m0s no rate for EUR
}

// Any error rejects the event, unless it contains the error of Retry or RetryAfter.
func ExampleFailureOf() {
	failure := ordain.FailureOf(errors.New("no such product"))
	fmt.Println(failure.Retry, failure.Reason)
	// Output:
	// false no such product
}

// A test can change an event before it passes the event to the handler.
func ExampleRunner_Send() {
	run := ordain.NewRunner(account).WithState(Account{BalanceCents: 100})
	event := run.NextEvent("account.deposited", Change{AmountCents: 50})
	event.EndOfSequence = true
	outcome, err := run.Send(event)
	fmt.Println(outcome.State, err, run.Ended())
	// Output:
	// {"balance_cents":150} <nil> true
}

// The host's log shows "paid order=o-7 cents=500" at the level INFO.
func Example_log() {
	slog.Info("paid", "order", "o-7", "cents", 500)
}
