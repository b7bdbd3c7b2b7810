package ordain

import (
	"fmt"
	"slices"
	"time"
)

// Message is a message to a sink. The host publishes the message after the commit. The host may publish the message
// more than once, always with the same id.
type Message struct {
	// Sink is the name of a sink in the host's configuration.
	Sink string
	// Key is the key of the message in the sink; nil means the event's key.
	Key *string
	// Type is the type of the message, for example "order.paid"; must not be empty.
	Type string
	// ContentType is the media type of the data.
	ContentType string
	// Headers are the names and values of the headers, in order.
	Headers []Header
	// Data is the data, in the format that ContentType names.
	Data Raw
	// Delay is the minimum delay between the commit and the publishing; 0 means none. This release does not support
	// delays: the host rejects an outcome that contains a message with a delay.
	Delay time.Duration
	// EndOfSequence is true if the message is the last message of its key in a sequenced sink.
	EndOfSequence bool
}

// NewMessage creates a message with JSON data. Data of type [Raw] stays unchanged, and its content type is
// "application/octet-stream". If data is nil, the message has no data and no content type.
//
// NewMessage panics if the data cannot be encoded as JSON, because the cause is a bug of the handler.
func NewMessage(sink, kind string, data any) Message {
	message := Message{Sink: sink, Type: kind}
	switch data := data.(type) {
	case nil:
	case Raw:
		message.ContentType = "application/octet-stream"
		message.Data = data
	default:
		encoded, err := encode(data)
		if err != nil {
			panic(fmt.Sprintf("the data of a message %q cannot be encoded as JSON: %v", kind, err))
		}
		message.ContentType = "application/json"
		message.Data = encoded
	}
	return message
}

// WithKey returns the message with this key. Without a call of WithKey, a message has the event's key.
func (message Message) WithKey(key string) Message {
	message.Key = &key
	return message
}

// WithContentType returns the message with this media type of its data.
func (message Message) WithContentType(contentType string) Message {
	message.ContentType = contentType
	return message
}

// WithHeader returns the message with one more header.
func (message Message) WithHeader(name, value string) Message {
	// Clip makes append copy the headers: copies of a message never share headers.
	message.Headers = append(slices.Clip(message.Headers), Header{name, value})
	return message
}

// WithHeaders returns the message with these headers after its own headers.
func (message Message) WithHeaders(headers ...Header) Message {
	message.Headers = append(slices.Clip(message.Headers), headers...)
	return message
}

// WithDelay returns the message with this minimum delay between the commit and the publishing; see [Message.Delay].
func (message Message) WithDelay(delay time.Duration) Message {
	message.Delay = delay
	return message
}

// WithEndOfSequence returns the message marked, or not marked, as the last message of its key.
func (message Message) WithEndOfSequence(end bool) Message {
	message.EndOfSequence = end
	return message
}
