package ordain

import (
	"strings"
	"time"
	"unsafe"
)

// This file contains the canonical ABI of the function handle of wit/handler.wit, written by hand, so that a handler
// needs neither generated code nor other modules. Each record type has the memory layout of its counterpart in the WIT:
// in both, a field starts at a multiple of its alignment.

// memory is the linear memory that the host reads and writes.
type memory interface {
	// at returns the place with this address.
	at(address uint32) unsafe.Pointer
	// hold keeps the bytes in the memory until the host has read the result, and returns their address, which is a
	// multiple of 8 if the address of the bytes is one.
	hold(content []byte) uint32
}

// span is a list or a string: the address of its first element and the number of its elements.
type span struct {
	address, length uint32
}

type optionalSpan struct {
	exists bool
	value  span
}

type optionalNumber struct {
	exists bool
	value  uint64
}

type headerRecord struct {
	name, value span
}

type eventRecord struct {
	stream        span
	key           span
	sequence      uint64
	id            span
	kind          span
	source        span
	time          optionalNumber
	contentType   span
	headers       span
	data          span
	endOfSequence bool
}

// callRecord contains the arguments of a call.
type callRecord struct {
	event eventRecord
	state optionalSpan
}

type messageRecord struct {
	sink          span
	key           optionalSpan
	kind          span
	contentType   span
	headers       span
	data          span
	delay         optionalNumber
	endOfSequence bool
}

type outcomeRecord struct {
	change    Change
	state     span
	messages  span
	completes bool
}

type failureRecord struct {
	rejects bool
	_       [7]byte // the fields of a retry start at a multiple of 8
	reason  span
	after   optionalNumber
}

// resultRecord is the result of a call. The outcome and the failure share the words of the content.
type resultRecord struct {
	failed  bool
	content [4]uint64
}

// liftCall copies the arguments of a call out of the memory.
func liftCall(from memory, address uint32) (Event[Raw], *Raw) {
	call := (*callRecord)(from.at(address))
	event := Event[Raw]{
		Stream:        liftText(from, call.event.stream),
		Key:           liftText(from, call.event.key),
		Sequence:      call.event.sequence,
		ID:            liftText(from, call.event.id),
		Type:          liftText(from, call.event.kind),
		Source:        liftText(from, call.event.source),
		Time:          liftTime(call.event.time),
		ContentType:   liftText(from, call.event.contentType),
		Headers:       liftHeaders(from, call.event.headers),
		Data:          liftBytes(from, call.event.data),
		EndOfSequence: call.event.endOfSequence,
	}
	if !call.state.exists {
		return event, nil
	}
	state := liftBytes(from, call.state.value)
	return event, &state
}

func liftText(from memory, text span) string {
	if text.length == 0 {
		return ""
	}
	return strings.Clone(unsafe.String((*byte)(from.at(text.address)), text.length))
}

func liftBytes(from memory, list span) Raw {
	if list.length == 0 {
		return Raw{}
	}
	return append(Raw(nil), unsafe.Slice((*byte)(from.at(list.address)), list.length)...)
}

func liftHeaders(from memory, list span) []Header {
	if list.length == 0 {
		return nil
	}
	headers := make([]Header, list.length)
	for i, record := range unsafe.Slice((*headerRecord)(from.at(list.address)), list.length) {
		headers[i] = Header{liftText(from, record.name), liftText(from, record.value)}
	}
	return headers
}

func liftTime(ms optionalNumber) time.Time {
	if !ms.exists {
		return time.Time{}
	}
	// time.UnixMilli cannot represent all numbers of 64 bits without sign.
	return time.Unix(int64(ms.value/1000), int64(ms.value%1000)*int64(time.Millisecond)).UTC()
}

// lowerOutcome returns the result of a call with this outcome.
func lowerOutcome(to memory, outcome *Outcome[Raw]) resultRecord {
	messages := make([]messageRecord, len(outcome.Messages))
	for i := range outcome.Messages {
		messages[i] = lowerMessage(to, &outcome.Messages[i])
	}
	var result resultRecord
	*(*outcomeRecord)(unsafe.Pointer(&result.content)) = outcomeRecord{
		change:    outcome.Change,
		state:     lowerBytes(to, outcome.State),
		messages:  lowerList(to, messages),
		completes: outcome.Completes,
	}
	return result
}

func lowerMessage(to memory, message *Message) messageRecord {
	record := messageRecord{
		sink:          lowerText(to, message.Sink),
		kind:          lowerText(to, message.Type),
		contentType:   lowerText(to, message.ContentType),
		data:          lowerBytes(to, message.Data),
		delay:         lowerDelay(message.Delay),
		endOfSequence: message.EndOfSequence,
	}
	if message.Key != nil {
		record.key = optionalSpan{true, lowerText(to, *message.Key)}
	}
	headers := make([]headerRecord, len(message.Headers))
	for i, header := range message.Headers {
		headers[i] = headerRecord{lowerText(to, header.Name), lowerText(to, header.Value)}
	}
	record.headers = lowerList(to, headers)
	return record
}

// lowerFailure returns the result of a call that failed.
func lowerFailure(to memory, failure *Failure) resultRecord {
	result := resultRecord{failed: true}
	*(*failureRecord)(unsafe.Pointer(&result.content)) = failureRecord{
		rejects: !failure.Retry,
		reason:  lowerText(to, failure.Reason),
		after:   lowerDelay(failure.After),
	}
	return result
}

// lowerDelay rounds a delay up to whole milliseconds. No delay, and a delay below zero, are absent.
func lowerDelay(delay time.Duration) optionalNumber {
	if delay <= 0 {
		return optionalNumber{}
	}
	ms := uint64(delay / time.Millisecond)
	if delay%time.Millisecond > 0 {
		ms++
	}
	return optionalNumber{true, ms}
}

// lowerText makes the text valid UTF-8 as the package json does, because the host refuses any other text.
func lowerText(to memory, text string) span {
	text = strings.ToValidUTF8(text, "\uFFFD")
	return lowerBytes(to, unsafe.Slice(unsafe.StringData(text), len(text)))
}

func lowerBytes(to memory, content []byte) span {
	if len(content) == 0 {
		return span{}
	}
	return span{to.hold(content), uint32(len(content))}
}

// lowerList passes records without pointers to the memory.
func lowerList[T any](to memory, records []T) span {
	if len(records) == 0 {
		return span{}
	}
	size := len(records) * int(unsafe.Sizeof(records[0]))
	content := unsafe.Slice((*byte)(unsafe.Pointer(&records[0])), size)
	return span{to.hold(content), uint32(len(records))}
}
