package ordain

import "fmt"

// Handler is a function that handles one event. The state is nil if the key has none. The handler returns either an
// outcome or an error.
type Handler[D, S any] func(event Event[D], state *S) (*Outcome[S], error)

// Handle makes a function the handler of this component. The function init of the main package calls Handle once. In a
// native build, Handle has no effect.
//
// Handle panics if the component already has a handler.
func Handle[D, S any](handle Handler[D, S]) {
	if component != nil {
		panic("ordain.Handle was called twice: a component has one handler")
	}
	component = Typed(handle)
}

// component is the handler of this component.
var component Handler[Raw, Raw]

// Typed returns a handler of bytes that decodes the data and the state, calls handle, and encodes the new state. [Handle]
// and [Runner] use Typed. A handler of bytes can use Typed to pass some types of events to another handler.
//
// The handler panics if the state cannot be decoded, or if the new state cannot be encoded. The cause is a bug of the
// handler, or a state that another version of the handler wrote.
func Typed[D, S any](handle Handler[D, S]) Handler[Raw, Raw] {
	return func(raw Event[Raw], before *Raw) (*Outcome[Raw], error) {
		event, err := Decode[D](raw)
		if err != nil {
			return nil, err
		}
		var state *S
		if before != nil {
			state = readState[S](*before)
		}
		outcome, err := handle(event, state)
		if err != nil {
			return nil, err
		}
		if outcome == nil {
			panic("the handler returned neither an outcome nor an error")
		}
		after := &Outcome[Raw]{Change: outcome.Change, Messages: outcome.Messages, Completes: outcome.Completes}
		if outcome.Change == ChangePut {
			after.State = writeState(outcome.State)
		}
		return after, nil
	}
}

func readState[S any](encoded Raw) *S {
	state, err := decode[S](encoded)
	if err != nil {
		panic(fmt.Sprintf("the state of this key (%d bytes) cannot be decoded: %v. If another version of the handler "+
			"wrote the state, this version must be able to read that state", len(encoded), err))
	}
	return &state
}

func writeState(state any) Raw {
	encoded, err := encode(state)
	if err != nil {
		panic(fmt.Sprintf("the new state cannot be encoded: %v", err))
	}
	return encoded
}
