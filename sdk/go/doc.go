// Package ordain is an SDK for Ordain handlers in Go.
//
// A handler is a function. The function receives one event of a key and the state of the key after the previous event.
// The function returns the change of the state and the messages to publish. Ordain calls the function for each event
// of a key, in order, and commits either the whole outcome of a call or nothing. Ordain may call the function several
// times for one event, and commits the outcome of one of these calls.
//
//	package main
//
//	import "ordain"
//
//	type Payment struct {
//		Cents int64 `json:"cents"`
//	}
//
//	type Account struct {
//		Cents int64 `json:"cents"`
//	}
//
//	func handle(event ordain.Event[Payment], account *Account) (*ordain.Outcome[Account], error) {
//		if account == nil {
//			account = &Account{}
//		}
//		if event.Data.Cents <= 0 {
//			return nil, ordain.Reject("%d cents cannot be paid", event.Data.Cents)
//		}
//		account.Cents += event.Data.Cents
//		return ordain.Put(*account).Emit("receipts", "account.credited", account), nil
//	}
//
//	func init() { ordain.Handle(handle) }
//
//	func main() {}
//
// The function main must exist, but a component never calls it. The function init must call [Handle]. Go's own compiler
// builds a core module; the program ordain makes a component of the module:
//
//	GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath -ldflags="-s -w" -o payments.core.wasm .
//	ordain plugins wrap payments.core.wasm -o plugins/payments.wasm
//
// In a test, a [Runner] calls the same function natively.
//
// # Data, states and messages
//
// Data, states and messages are JSON, which the package encoding/json decodes and encodes. A value of type [Raw] is
// bytes without conversion. Empty data is JSON's null, which only a pointer, a map, a slice, an interface and struct{}
// accept: a handler of events without data can be a handler of Event[any] or of Event[*Payment]. As in all of
// encoding/json, a missing field keeps its zero value, and unknown fields are ignored. Numbers in fields of an integer
// type are exact; numbers in an interface become float64.
//
// A handler whose types of events have different data can be a handler of Event[Raw], and call [Decode] once it knows
// the type of the event.
//
// # Errors
//
//	cause                                   write                     effect
//	the event is invalid                    Reject, or any error      dead letter with the reason; the key continues
//	a later try may succeed                 Retry, RetryAfter         the event is retried; the key's later events wait
//	the data cannot be decoded              nothing                   the event is rejected
//	a bug, or a state that does not decode  a panic                   retried once, then by default the key parks
//
// Any error other than the errors of [Retry] and [RetryAfter] rejects the event, because the result of a handler depends
// only on its arguments: with the same arguments, the error would occur again. A state that cannot be decoded is a fault
// instead, as a panic is: if the handler rejected the event, it would reject every later event of the key too.
//
// # Logging
//
// The lines of log/slog and of log go to the host's log, with their levels. The host adds stream, key and sequence to
// each line. Text that the handler prints to standard output is logged at the level INFO, and text that it prints to
// standard error at the level WARN. In a native build, this package does not change slog's default logger.
//
// # The environment of a handler
//
// A handler has no files, environment variables or sockets.
//
// Time: time.Now returns the event's time or, if the event has no time, the time of the host's machine at the start of
// the call. Time advances only while the handler sleeps, and a sleep ends at once.
//
// Randomness: crypto/rand derives its numbers from the event, and returns the same numbers in each try of the event.
// math/rand and math/rand/v2 are seeded once for each instance of the component, so that their numbers differ from try
// to try. A generator with a seed from crypto/rand returns the same numbers in each try.
//
// Goroutines: they run on one thread, and only until the handler returns. A goroutine that is left behind continues
// during a later event, which may belong to another key: a handler must wait for its goroutines. If all goroutines wait
// for each other, Go ends the call with its report of the deadlock. A panic in a goroutine ends the call too, with Go's
// own report instead of the shorter report of this package.
//
// Variables: one instance of the component handles many events of different keys, and Ordain may replace the instance
// at any time. The value of a package variable may therefore come from an event of another key, or be lost. Ordain
// keeps only the state that the handler returns.
//
// Exit: os.Exit and log.Fatal end the call without an answer, as a panic does, but without a trace.
package ordain
