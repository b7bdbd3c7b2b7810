// Conformance is a handler with one behaviour for each type of event. The handlers of this name in the other languages
// behave in the same way, so that one test can check every SDK.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"ordain"
)

// The commands that build conformance.wasm.
//
//go:generate env GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared -trimpath "-ldflags=-s -w" -o conformance.core.wasm .
//go:generate ordain plugins wrap conformance.core.wasm -o conformance.wasm

// sink is the sink of all messages.
const sink = "out"

type (
	event   = ordain.Event[ordain.Raw]
	state   = ordain.Raw
	outcome = ordain.Outcome[state]
	object  = map[string]any
)

// behaviours contains the function for each type of event.
var behaviours = map[string]func(event, *state) (*outcome, error){
	"echo":     echo,
	"describe": describe,
	"put":      put,
	"get":      get,
	"delete":   remove,
	"add":      ordain.Typed(add),
	"exact":    exact,
	"clock":    clock,
	"random":   random,
	"log":      writeLog,
	"print":    printText,
	"many":     many,
	"reject":   reject,
	"retry":    retry,
	"fault":    fault,
	"complete": complete,
	"end":      end,
	"spin":     spin,
	"grow":     grow,
}

func handle(event event, before *state) (*outcome, error) {
	behave, known := behaviours[event.Type]
	if !known {
		return nil, ordain.Reject("unknown type %s", event.Type)
	}
	return behave(event, before)
}

func emit(kind string, data any) (*outcome, error) {
	return ordain.Keep[state]().Emit(sink, kind, data), nil
}

func echo(event event, _ *state) (*outcome, error) {
	message := ordain.NewMessage(sink, "echoed", event.Data).
		WithContentType(event.ContentType).
		WithHeaders(event.Headers...)
	return ordain.Keep[state]().EmitMessages(message), nil
}

func describe(event event, _ *state) (*outcome, error) {
	headers := [][2]string{}
	for _, header := range event.Headers {
		headers = append(headers, [2]string{header.Name, header.Value})
	}
	description := object{
		"stream":          event.Stream,
		"key":             event.Key,
		"sequence":        event.Sequence,
		"id":              event.ID,
		"type":            event.Type,
		"source":          event.Source,
		"time_ms":         nil,
		"content_type":    event.ContentType,
		"end_of_sequence": event.EndOfSequence,
		"headers":         headers,
	}
	if !event.Time.IsZero() {
		description["time_ms"] = event.Time.UnixMilli()
	}
	return emit("described", description)
}

func put(event event, _ *state) (*outcome, error) {
	return ordain.Put(event.Data), nil
}

func get(_ event, before *state) (*outcome, error) {
	if before == nil {
		return nil, ordain.Reject("no state")
	}
	return emit("state", *before)
}

func remove(event, *state) (*outcome, error) {
	return ordain.Delete[state](), nil
}

type amount struct {
	Amount *int64 `json:"amount"`
}

type total struct {
	Total int64 `json:"total"`
}

func add(event ordain.Event[amount], before *total) (*ordain.Outcome[total], error) {
	if event.Data.Amount == nil {
		return nil, ordain.Reject(`"amount" is missing in the data`)
	}
	var after total
	if before != nil {
		after = *before
	}
	after.Total += *event.Data.Amount
	return ordain.Put(after).Emit(sink, "added", after), nil
}

type number struct {
	N uint64 `json:"n"`
}

func exact(event event, _ *state) (*outcome, error) {
	typed, err := ordain.Decode[number](event)
	if err != nil {
		return nil, err
	}
	return emit("exact", typed.Data)
}

func clock(event, *state) (*outcome, error) {
	return emit("clock", object{"now_ms": time.Now().UnixMilli()})
}

func random(event, *state) (*outcome, error) {
	return emit("random", object{"values": []float64{rand.Float64(), rand.Float64()}})
}

func writeLog(event, *state) (*outcome, error) {
	slog.Log(context.Background(), ordain.LevelTrace, "trace ☃")
	slog.Debug("debug ☃")
	slog.Info("info ☃")
	slog.Warn("warn ☃")
	slog.Error("error ☃")
	return ordain.Keep[state](), nil
}

func printText(event, *state) (*outcome, error) {
	fmt.Println("printed ☃")
	fmt.Fprintln(os.Stderr, "complained ☃")
	return ordain.Keep[state](), nil
}

type count struct {
	Messages int `json:"messages"`
}

func many(event event, _ *state) (*outcome, error) {
	typed, err := ordain.Decode[count](event)
	if err != nil {
		return nil, err
	}
	outcome := ordain.Keep[state]()
	for i := range typed.Data.Messages {
		key := fmt.Sprintf("%s/%d", event.Key, i)
		outcome.EmitMessages(ordain.NewMessage(sink, "many", object{"index": i}).WithKey(key))
	}
	return outcome, nil
}

func reject(event, *state) (*outcome, error) {
	return nil, ordain.Reject("rejected on request ☃")
}

func retry(event, *state) (*outcome, error) {
	return nil, ordain.RetryAfter(20*time.Millisecond, "retried on request ☃")
}

func fault(event, *state) (*outcome, error) {
	panic("failed on request ☃")
}

func complete(event, *state) (*outcome, error) {
	return ordain.Keep[state]().Emit(sink, "completed", nil).Complete(), nil
}

func end(event event, _ *state) (*outcome, error) {
	message := ordain.NewMessage(sink, "ended", object{"end": event.EndOfSequence}).
		WithEndOfSequence(event.EndOfSequence)
	return ordain.Keep[state]().EmitMessages(message), nil
}

func spin(event, *state) (*outcome, error) {
	for {
	}
}

// blocks keeps the memory that grow takes.
var blocks [][]byte

func grow(event, *state) (*outcome, error) {
	for {
		blocks = append(blocks, make([]byte, 1<<20))
	}
}

func init() { ordain.Handle(handle) }

func main() {}
