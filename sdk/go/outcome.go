package ordain

// Outcome is the effect of one event. The host commits either the whole effect or nothing. [Keep], [Put] and [Delete]
// create an outcome.
type Outcome[S any] struct {
	// Change is the change of the key's state.
	Change Change
	// State is the new state if Change is ChangePut.
	State S
	// Messages are the messages to publish, in this order.
	Messages []Message
	// Completes is true if the key ends after this event. Until complete_ttl has passed since the end of the key,
	// Ordain dead-letters all later events of the key.
	Completes bool
}

// Change is the kind of change of a key's state.
type Change uint8

const (
	// ChangeNone keeps the state.
	ChangeNone Change = iota
	// ChangePut replaces the state.
	ChangePut
	// ChangeDelete removes the state: the handler receives the next event of the key without a state.
	ChangeDelete
)

// Keep creates an outcome that keeps the state.
func Keep[S any]() *Outcome[S] { return &Outcome[S]{} }

// Put creates an outcome that replaces the state.
func Put[S any](state S) *Outcome[S] { return &Outcome[S]{Change: ChangePut, State: state} }

// Delete creates an outcome that removes the state.
func Delete[S any]() *Outcome[S] { return &Outcome[S]{Change: ChangeDelete} }

// Emit adds a message with the event's key. [NewMessage] describes how data is encoded.
func (outcome *Outcome[S]) Emit(sink, kind string, data any) *Outcome[S] {
	return outcome.EmitMessages(NewMessage(sink, kind, data))
}

// EmitMessages adds messages.
func (outcome *Outcome[S]) EmitMessages(messages ...Message) *Outcome[S] {
	outcome.Messages = append(outcome.Messages, messages...)
	return outcome
}

// Complete ends the key after this event.
func (outcome *Outcome[S]) Complete() *Outcome[S] {
	outcome.Completes = true
	return outcome
}
