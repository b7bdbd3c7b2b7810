package ordain

import (
	"bytes"
	"fmt"
	"time"
)

// Runner runs a handler natively in a test, with the state and the next sequence of one key.
//
// The runner converts data and state to bytes and back, as the host and a component do. A test therefore detects a
// conversion that loses data. A panic of the handler also makes the test panic.
type Runner[D, S any] struct {
	handle Handler[Raw, Raw]
	state  *Raw
	next   uint64
	ended  bool
}

// NewRunner creates a runner for a key without state, whose next sequence is 1.
func NewRunner[D, S any](handle Handler[D, S]) *Runner[D, S] {
	return &Runner[D, S]{handle: Typed(handle), next: 1}
}

// Event passes the next event of the key to the handler. The data is encoded as JSON; data of type [Raw] stays
// unchanged, and nil is no data. Event panics in the same cases as [Runner.Send], and if the data cannot be encoded.
func (runner *Runner[D, S]) Event(kind string, data any) (*Outcome[Raw], error) {
	return runner.Send(runner.NextEvent(kind, data))
}

// NextEvent returns the next event without passing it to the handler, so that the test can change it and then call
// [Runner.Send].
func (runner *Runner[D, S]) NextEvent(kind string, data any) Event[Raw] {
	event := Event[Raw]{
		Stream:      "test",
		Key:         "key",
		Sequence:    runner.next,
		ID:          fmt.Sprintf("key/%d", runner.next),
		Type:        kind,
		Source:      "/test",
		Time:        time.UnixMilli(0).UTC(),
		ContentType: "application/json",
	}
	if data != nil {
		event.Data = mustEncode("data of a test event", data)
	}
	return event
}

// Send passes an event to the handler. An error is always a *[Failure]. If the handler requests a retry, the runner
// stays unchanged. Otherwise the runner settles the event (ends it for good), even if the handler rejects the event.
//
// Send panics if the key has ended, because the host passes no more events of such a key to the handler. Send also
// panics if the handler panics, or if a state cannot be decoded or encoded: in these cases, a component would fail.
func (runner *Runner[D, S]) Send(event Event[Raw]) (*Outcome[Raw], error) {
	if runner.ended {
		panic(fmt.Sprintf("the key has ended before event %d %q", event.Sequence, event.Type))
	}
	event.Data = bytes.Clone(event.Data)
	outcome, err := runner.handle(event, cloneState(runner.state))
	failure := FailureOf(err)
	if failure != nil && failure.Retry {
		return nil, failure
	}
	// A test may send an event with an earlier sequence. Such an event does not advance the key.
	runner.next = max(runner.next, event.Sequence+1)
	runner.ended = event.EndOfSequence
	if failure != nil {
		return nil, failure
	}
	runner.ended = runner.ended || outcome.Completes
	switch outcome.Change {
	case ChangePut:
		runner.state = cloneState(&outcome.State)
	case ChangeDelete:
		runner.state = nil
	}
	return outcome, nil
}

// State returns the current state; nil if the key has none. State panics if the state cannot be decoded.
func (runner *Runner[D, S]) State() *S {
	if runner.state == nil {
		return nil
	}
	return readState[S](bytes.Clone(*runner.state))
}

// WithState sets the state before the first event, and returns the runner. The state is encoded into the bytes that the
// host would store; a state of type [Raw] stays unchanged.
func (runner *Runner[D, S]) WithState(state any) *Runner[D, S] {
	encoded := mustEncode("state of a test", state)
	runner.state = &encoded
	return runner
}

// Ended returns whether an event or an outcome has ended the key.
func (runner *Runner[D, S]) Ended() bool { return runner.ended }

func cloneState(state *Raw) *Raw {
	if state == nil {
		return nil
	}
	clone := append(Raw{}, *state...)
	return &clone
}

func mustEncode(what string, value any) Raw {
	encoded, err := encode(value)
	if err != nil {
		panic(fmt.Sprintf("the %s cannot be encoded: %v", what, err))
	}
	return encoded
}
