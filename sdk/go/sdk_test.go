package ordain_test

import (
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"ordain"
)

type addition struct {
	Add uint64 `json:"add"`
}

type sum struct {
	Sum uint64 `json:"sum"`
}

var errFull = errors.New("the sum is full")

func add(event ordain.Event[addition], before *sum) (*ordain.Outcome[sum], error) {
	var after sum
	if before != nil {
		after = *before
	}
	if event.Data.Add > math.MaxUint64-after.Sum {
		return nil, errFull
	}
	after.Sum += event.Data.Add
	switch event.Type {
	case "busy":
		return nil, ordain.RetryAfter(7*time.Millisecond, "busy")
	case "forget":
		return ordain.Delete[sum](), nil
	case "look":
		return ordain.Keep[sum]().Emit("out", "looked", after.Sum), nil
	case "last":
		return ordain.Put(after).Complete(), nil
	case "nothing":
		return nil, nil
	default:
		return ordain.Put(after), nil
	}
}

func mustHandle(t *testing.T, run *ordain.Runner[addition, sum], kind string, data any) *ordain.Outcome[ordain.Raw] {
	t.Helper()
	outcome, err := run.Event(kind, data)
	if err != nil {
		t.Fatal(err)
	}
	return outcome
}

// expectPanic calls the function, and checks the text of its panic.
func expectPanic(t *testing.T, text string, call func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if reason, _ := recover().(string); !strings.Contains(reason, text) {
			t.Errorf("panic %q, expected %q", reason, text)
		}
	}()
	call()
}

func TestEventsProduceOutcomesAndAState(t *testing.T) {
	run := ordain.NewRunner(add)
	mustHandle(t, run, "add", addition{2})
	mustHandle(t, run, "add", map[string]any{"add": 3, "more": "is ignored"})
	looked := mustHandle(t, run, "look", addition{0})
	expected := []ordain.Message{{Sink: "out", Type: "looked", ContentType: "application/json", Data: ordain.Raw("5")}}
	if !reflect.DeepEqual(looked.Messages, expected) || looked.Change != ordain.ChangeNone {
		t.Errorf("outcome %+v", looked)
	}
	if run.State().Sum != 5 {
		t.Error(run.State())
	}
	if !mustHandle(t, run, "last", addition{1}).Completes || !run.Ended() {
		t.Error("the key has not ended")
	}
	expectPanic(t, `the key has ended before event 5 "add"`, func() { _, _ = run.Event("add", addition{1}) })
}

func TestRejectionSettlesAndRetryDoesNot(t *testing.T) {
	run := ordain.NewRunner(add)
	_, err := run.Event("busy", addition{1})
	failure := ordain.FailureOf(err)
	if !failure.Retry || failure.After != 7*time.Millisecond || failure.Reason != "busy" {
		t.Errorf("failure %+v", failure)
	}
	if next := run.NextEvent("add", nil).Sequence; next != 1 {
		t.Errorf("a retry advanced the key to %d", next)
	}
	mustHandle(t, run, "add", addition{math.MaxUint64})
	_, err = run.Event("add", addition{1})
	if !errors.Is(err, errFull) || ordain.FailureOf(err).Retry {
		t.Errorf("failure %+v", err)
	}
	if next := run.NextEvent("add", nil).Sequence; next != 3 {
		t.Errorf("a rejection advanced the key to %d", next)
	}
	if run.State().Sum != math.MaxUint64 {
		t.Error(run.State())
	}
	mustHandle(t, run, "forget", addition{0})
	if run.State() != nil {
		t.Error(run.State())
	}
}

func TestEventThatEndsTheSequenceEndsTheKey(t *testing.T) {
	run := ordain.NewRunner(add)
	event := run.NextEvent("add", ordain.Raw("refused"))
	event.EndOfSequence = true
	if _, err := run.Send(event); err == nil || !run.Ended() {
		t.Errorf("error %v, ended %v", err, run.Ended())
	}
}

func TestUndecodableDataIsRejected(t *testing.T) {
	for data, reason := range map[string]string{
		`{"add":"x"}`: `the data of this event of type "add" (11 bytes of "application/json") cannot be decoded: json: ` +
			`cannot unmarshal string into Go struct field addition.add of type uint64`,
		`{"add":1} x`:      `invalid character 'x' after top-level value`,
		`{"add":-1}`:       `cannot unmarshal number -1`,
		``:                 `(0 bytes of "application/json") cannot be decoded: empty data or null cannot be a ordain_test.addition`,
		"null\n":           `empty data or null cannot be`,
		"{\"x\":\"\xff\"}": `the text is not UTF-8`,
	} {
		_, err := ordain.NewRunner(add).Event("add", ordain.Raw(data))
		if err == nil || ordain.FailureOf(err).Retry || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v, expected %q", data, err, reason)
		}
	}
}

func TestEmptyDataIsNull(t *testing.T) {
	checkEmpty[any](t)
	checkEmpty[*addition](t)
	checkEmpty[map[string]int](t)
	checkEmpty[struct{}](t)
	checkEmpty[ordain.Raw](t)
}

func checkEmpty[D any](t *testing.T) {
	t.Helper()
	run := ordain.NewRunner(func(event ordain.Event[D], _ *sum) (*ordain.Outcome[sum], error) {
		return ordain.Keep[sum]().Emit("out", "seen", event.Data), nil
	})
	if _, err := run.Event("empty", nil); err != nil {
		t.Errorf("%T: %v", *new(D), err)
	}
}

func TestFaultsPanic(t *testing.T) {
	expectPanic(t, "the state of this key (3 bytes) cannot be decoded: invalid character 'a'", func() {
		_, _ = ordain.NewRunner(add).WithState(ordain.Raw("abc")).Event("add", addition{1})
	})
	expectPanic(t, "the state of this key (0 bytes) cannot be decoded: empty data or null cannot be", func() {
		_, _ = ordain.NewRunner(add).WithState(ordain.Raw("")).Event("add", addition{1})
	})
	expectPanic(t, "the handler returned neither an outcome nor an error", func() {
		_, _ = ordain.NewRunner(add).Event("nothing", addition{1})
	})
	expectPanic(t, "the new state cannot be encoded", func() {
		_, _ = ordain.NewRunner(func(ordain.Event[any], *chan int) (*ordain.Outcome[chan int], error) {
			return ordain.Put(make(chan int)), nil
		}).Event("odd", nil)
	})
	expectPanic(t, `the data of a message "odd" cannot be encoded as JSON`, func() {
		ordain.NewMessage("out", "odd", math.Inf(1))
	})
}

func TestRawStateAndDataKeepTheirBytes(t *testing.T) {
	bytes := ordain.Raw{0, 0xff, '\n', '<'}
	run := ordain.NewRunner(func(event ordain.Event[ordain.Raw], state *ordain.Raw) (*ordain.Outcome[ordain.Raw], error) {
		outcome := ordain.Put(event.Data)
		if state != nil {
			outcome.Emit("out", "before", *state)
		}
		return outcome, nil
	})
	_, _ = run.Event("put", bytes)
	outcome, err := run.Event("put", ordain.Raw{})
	if err != nil || !reflect.DeepEqual(outcome.Messages[0].Data, bytes) {
		t.Error(outcome, err)
	}
	if outcome.Messages[0].ContentType != "application/octet-stream" {
		t.Error(outcome.Messages[0].ContentType)
	}
	if state := run.State(); state == nil || len(*state) != 0 {
		t.Errorf("an empty state became %v", state)
	}
}

func TestErrorsBecomeFailures(t *testing.T) {
	wrapped := errors.Join(errors.New("first"), ordain.Retry("second: %w", io.ErrUnexpectedEOF))
	failure := ordain.FailureOf(wrapped)
	if !failure.Retry || failure.Reason != "first\nsecond: unexpected EOF" || !errors.Is(failure, io.ErrUnexpectedEOF) {
		t.Errorf("failure %+v", failure)
	}
	if failure := ordain.FailureOf(io.EOF); failure.Retry || failure.Reason != "EOF" {
		t.Errorf("failure %+v", failure)
	}
	if failure := ordain.FailureOf(nil); failure != nil {
		t.Errorf("failure %+v", failure)
	}
}

func TestCopiesOfAMessageShareNoHeaders(t *testing.T) {
	base := ordain.NewMessage("out", "one", nil).WithHeader("a", "1").WithHeader("b", "2").WithHeader("c", "3")
	first, second := base.WithHeader("d", "first"), base.WithHeader("d", "second")
	if first.Headers[3].Value != "first" || second.Headers[3].Value != "second" || len(base.Headers) != 3 {
		t.Error(first, second, base)
	}
}

func TestMessageDataIsNotEscapedForHTML(t *testing.T) {
	message := ordain.NewMessage("out", "one", map[string]string{"a": "<&>☃"})
	if message.Data.String() != `{"a":"<&>☃"}` {
		t.Error(message.Data)
	}
}

func TestFirstHeaderOfANameIsFoundInAnyCase(t *testing.T) {
	event := ordain.Event[any]{Headers: []ordain.Header{{"X-A", "1"}, {"x-a", "2"}}}
	if value, found := event.Header("x-A"); !found || value != "1" {
		t.Error(value, found)
	}
	if value, found := event.Header("x"); found || value != "" {
		t.Error(value, found)
	}
}
