package ordain

import (
	"strings"
	"time"
)

// Event is an event with its data decoded as D.
type Event[D any] struct {
	// Stream is the name of the stream.
	Stream string
	// Key is the unit of order: an order id, an account, a session.
	Key string
	// Sequence is the number of the event within its key. Usually, the number is one higher than the number of the
	// key's previous event. If Ordain skips a missing event, or dead-letters an event without a call of the handler,
	// the handler does not see the number of this event.
	Sequence uint64
	// ID is the id of the event. Usually the producer sets the id.
	ID string
	// Type is the type of the event, for example "order.paid".
	Type string
	// Source is the name of the producer (the CloudEvents attribute source); may be empty.
	Source string
	// Time is the time of the event by the producer's clock, in UTC, with a precision of 1 ms. If the producer set no
	// time, Time.IsZero reports true.
	Time time.Time
	// ContentType is the media type of the data, set by the producer. If the producer set no media type, the text is
	// "application/json" for an event whose attributes and data arrived in one JSON object, and empty for any other
	// event.
	ContentType string
	// Headers are the attributes of the event that have no field of their own here, in order. A value that is not text
	// is encoded as JSON.
	Headers []Header
	// Data is the decoded data.
	Data D
	// EndOfSequence is true if the producer marked the event as the last event of its key. The key then ends after this
	// event, even if the handler rejects the event.
	EndOfSequence bool
}

// Header is the name and the value of a header.
type Header struct {
	Name, Value string
}

// Header returns the value of the first header with this name. The comparison of names ignores case.
func (event Event[D]) Header(name string) (value string, found bool) {
	for _, header := range event.Headers {
		if strings.EqualFold(header.Name, name) {
			return header.Value, true
		}
	}
	return "", false
}

// Decode returns the event with its data decoded as D. If the data cannot be decoded, the error rejects the event.
func Decode[D any](event Event[Raw]) (Event[D], error) {
	data, err := decode[D](event.Data)
	if err != nil {
		return Event[D]{}, Reject("the data of this event of type %q (%d bytes of %q) cannot be decoded: %w",
			event.Type, len(event.Data), event.ContentType, err)
	}
	return Event[D]{
		Stream:        event.Stream,
		Key:           event.Key,
		Sequence:      event.Sequence,
		ID:            event.ID,
		Type:          event.Type,
		Source:        event.Source,
		Time:          event.Time,
		ContentType:   event.ContentType,
		Headers:       event.Headers,
		Data:          data,
		EndOfSequence: event.EndOfSequence,
	}, nil
}
