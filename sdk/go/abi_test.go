package ordain

import (
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"
)

// block is a memory of a test: addresses are offsets into the words.
type block struct {
	words []uint64
	used  int
}

func newBlock() *block { return &block{words: make([]uint64, 1<<16), used: 64} }

func (block *block) at(address uint32) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(&block.words[0]), address)
}

func (block *block) bytes() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&block.words[0])), 8*len(block.words))
}

func (block *block) hold(content []byte) uint32 {
	address := (block.used + 7) &^ 7
	copy(block.bytes()[address:], content)
	block.used = address + len(content)
	return uint32(address)
}

func (block *block) put32(address, value uint32) {
	binary.LittleEndian.PutUint32(block.bytes()[address:], value)
}

func (block *block) get32(address uint32) uint32 {
	return binary.LittleEndian.Uint32(block.bytes()[address:])
}

func (block *block) get64(address uint32) uint64 {
	return binary.LittleEndian.Uint64(block.bytes()[address:])
}

func (block *block) putText(address uint32, text string) {
	block.put32(address, block.hold([]byte(text)))
	block.put32(address+4, uint32(len(text)))
}

func (block *block) text(address uint32) string {
	start := block.get32(address)
	return string(block.bytes()[start : start+block.get32(address+4)])
}

// storeCall stores the arguments of a call as the host does. The offsets are those of the canonical ABI.
func (block *block) storeCall(event *Event[Raw], ms *uint64, state *Raw) uint32 {
	call := block.hold(make([]byte, 112))
	block.putText(call, event.Stream)
	block.putText(call+8, event.Key)
	binary.LittleEndian.PutUint64(block.bytes()[call+16:], event.Sequence)
	block.putText(call+24, event.ID)
	block.putText(call+32, event.Type)
	block.putText(call+40, event.Source)
	if ms != nil {
		block.bytes()[call+48] = 1
		binary.LittleEndian.PutUint64(block.bytes()[call+56:], *ms)
	}
	block.putText(call+64, event.ContentType)
	headers := block.hold(make([]byte, 16*len(event.Headers)))
	block.put32(call+72, headers)
	block.put32(call+76, uint32(len(event.Headers)))
	for i, header := range event.Headers {
		block.putText(headers+16*uint32(i), header.Name)
		block.putText(headers+16*uint32(i)+8, header.Value)
	}
	block.putText(call+80, string(event.Data))
	if event.EndOfSequence {
		block.bytes()[call+88] = 1
	}
	if state != nil {
		block.bytes()[call+96] = 1
		block.putText(call+100, string(*state))
	}
	return call
}

// storeResult stores a result, and returns its address.
func (block *block) storeResult(result resultRecord) uint32 {
	return block.hold(unsafe.Slice((*byte)(unsafe.Pointer(&result)), unsafe.Sizeof(result)))
}

// loadMessage reads a message as the host does.
func (block *block) loadMessage(address uint32) Message {
	message := Message{
		Sink:          block.text(address),
		Type:          block.text(address + 20),
		ContentType:   block.text(address + 28),
		Data:          Raw(block.text(address + 44)),
		EndOfSequence: block.bytes()[address+72] == 1,
	}
	if block.bytes()[address+8] == 1 {
		key := block.text(address + 12)
		message.Key = &key
	}
	for i := range block.get32(address + 40) {
		header := block.get32(address+36) + 16*i
		message.Headers = append(message.Headers, Header{block.text(header), block.text(header + 8)})
	}
	if block.bytes()[address+56] == 1 {
		message.Delay = time.Duration(block.get64(address+64)) * time.Millisecond
	}
	return message
}

func TestRecordsHaveTheSizesOfTheCanonicalABI(t *testing.T) {
	for name, sizes := range map[string][2]uintptr{
		"call":    {unsafe.Sizeof(callRecord{}), 112},
		"event":   {unsafe.Sizeof(eventRecord{}), 96},
		"header":  {unsafe.Sizeof(headerRecord{}), 16},
		"message": {unsafe.Sizeof(messageRecord{}), 80},
		"outcome": {unsafe.Sizeof(outcomeRecord{}), 24},
		"failure": {unsafe.Sizeof(failureRecord{}), 32},
		"result":  {unsafe.Sizeof(resultRecord{}), 40},
	} {
		if sizes[0] != sizes[1] {
			t.Errorf("%s has %d bytes, expected %d", name, sizes[0], sizes[1])
		}
	}
}

func FuzzCallIsLifted(f *testing.F) {
	f.Add("orders", "ключ ☃", uint64(1), "id", "order.paid", "/shop", uint64(1700000000123), "application/json", "a", "b",
		[]byte(`{"n":1}`), []byte("state"), uint8(0xff))
	f.Add("", "", uint64(1<<64-1), "", "", "", uint64(1<<64-1), "", "", "", []byte{0, 0xff}, []byte(nil), uint8(0))
	f.Fuzz(func(t *testing.T, stream, key string, sequence uint64, id, kind, source string, ms uint64, contentType,
		name, value string, data, state []byte, options uint8) {
		sent := Event[Raw]{
			Stream: stream, Key: key, Sequence: sequence, ID: id, Type: kind, Source: source, ContentType: contentType,
			Data: append(Raw{}, data...), EndOfSequence: options&1 != 0,
		}
		var sentMs *uint64
		if options&2 != 0 {
			sentMs = &ms
		}
		var before *Raw
		if options&4 != 0 {
			before = cloneState((*Raw)(&state))
		}
		for range options >> 4 {
			sent.Headers = append(sent.Headers, Header{name, value}, Header{value, name})
		}

		memory := newBlock()
		event, lifted := liftCall(memory, memory.storeCall(&sent, sentMs, before))
		// The host reuses the memory of the arguments.
		clear(memory.words)

		if event.Time.IsZero() != (sentMs == nil) || (sentMs != nil && uint64(event.Time.UnixMilli()) != ms) {
			t.Errorf("time %v, expected %d ms", event.Time, ms)
		}
		event.Time = time.Time{}
		if !reflect.DeepEqual(event, sent) {
			t.Errorf("event %+v, expected %+v", event, sent)
		}
		if !reflect.DeepEqual(lifted, before) {
			t.Errorf("state %v, expected %v", lifted, before)
		}
	})
}

func FuzzOutcomeIsLowered(f *testing.F) {
	f.Add(uint8(1), []byte("state"), "out", "key ☃", "order.paid", "application/json", "a", "b", []byte("{}"),
		int64(20), uint8(0x3f))
	f.Add(uint8(2), []byte(nil), "", "", "", "", "", "", []byte(nil), int64(0), uint8(0))
	f.Fuzz(func(t *testing.T, change uint8, state []byte, sink, key, kind, contentType, name, value string, data []byte,
		delayMs int64, options uint8) {
		outcome := &Outcome[Raw]{Change: Change(change % 3), State: state, Completes: options&1 != 0}
		message := Message{Sink: sink, Type: kind, ContentType: contentType, Data: append(Raw{}, data...)}
		message.Delay = time.Duration(max(0, delayMs%(1<<40))) * time.Millisecond
		if options&2 != 0 {
			message = message.WithKey(key)
		}
		for range options >> 5 {
			message = message.WithHeader(name, value)
		}
		for range options >> 2 & 7 {
			outcome.EmitMessages(message.WithEndOfSequence(len(outcome.Messages) == 1))
		}

		memory := newBlock()
		result := memory.storeResult(lowerOutcome(memory, outcome))

		if failed := memory.bytes()[result]; failed != 0 {
			t.Errorf("failed %d", failed)
		}
		if lowered := memory.bytes()[result+8]; Change(lowered) != outcome.Change {
			t.Errorf("change %d, expected %d", lowered, outcome.Change)
		}
		if lowered := memory.text(result + 12); lowered != string(state) {
			t.Errorf("state %q, expected %q", lowered, state)
		}
		if completes := memory.bytes()[result+28] == 1; completes != outcome.Completes {
			t.Errorf("completes %v", completes)
		}
		if count := memory.get32(result + 24); int(count) != len(outcome.Messages) {
			t.Fatalf("%d messages, expected %d", count, len(outcome.Messages))
		}
		for i, expected := range outcome.Messages {
			lowered := memory.loadMessage(memory.get32(result+20) + 80*uint32(i))
			if !reflect.DeepEqual(lowered, validMessage(expected)) {
				t.Errorf("message %+v, expected %+v", lowered, expected)
			}
		}
	})
}

// validMessage returns the message with valid UTF-8 in all texts.
func validMessage(message Message) Message {
	valid := func(text string) string { return strings.ToValidUTF8(text, string(utf8.RuneError)) }
	message.Sink = valid(message.Sink)
	message.Type = valid(message.Type)
	message.ContentType = valid(message.ContentType)
	if message.Key != nil {
		message = message.WithKey(valid(*message.Key))
	}
	headers := message.Headers
	message.Headers = nil
	for _, header := range headers {
		message = message.WithHeader(valid(header.Name), valid(header.Value))
	}
	return message
}

func TestFailureIsLowered(t *testing.T) {
	for _, test := range []struct {
		err     error
		rejects byte
		afterMs uint64
	}{
		{Reject("no ☃"), 1, 0},
		{Retry("busy"), 0, 0},
		{RetryAfter(20*time.Millisecond, "busy"), 0, 20},
		{RetryAfter(1500*time.Microsecond, "busy"), 0, 2},
		{RetryAfter(-time.Second, "busy"), 0, 1},
	} {
		memory := newBlock()
		result := memory.storeResult(lowerFailure(memory, FailureOf(test.err)))
		if failed, rejects := memory.bytes()[result], memory.bytes()[result+8]; failed != 1 || rejects != test.rejects {
			t.Errorf("%v: failed %d, rejects %d", test.err, failed, rejects)
		}
		if reason := memory.text(result + 16); reason != test.err.Error() {
			t.Errorf("reason %q, expected %q", reason, test.err)
		}
		exists, after := memory.bytes()[result+24] == 1, memory.get64(result+32)
		if exists != (test.afterMs > 0) || after != test.afterMs {
			t.Errorf("%v: delay %v, %d ms", test.err, exists, after)
		}
	}
}
