package ordain_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"ordain"
)

//go:noinline
func divide(by int) int { return 100 / by }

// recurse panics after this number of calls.
//
//go:noinline
func recurse(depth int) int {
	if depth == 0 {
		panic(errors.New("deep ☃"))
	}
	return recurse(depth-1) + 1
}

// panicOfHandler returns the report of a panic in a handler that calls this function.
func panicOfHandler(call func()) (report string) {
	defer func() { report = ordain.DescribePanic(recover()) }()
	handle := ordain.Typed(func(ordain.Event[any], *any) (*ordain.Outcome[any], error) {
		call()
		return nil, nil
	})
	_, _ = handle(ordain.Event[ordain.Raw]{}, nil)
	return "no panic"
}

func TestReportOfAPanicHasTheTextAndTheFramesOfTheHandler(t *testing.T) {
	report := panicOfHandler(func() { divide(0) })
	expected := regexp.MustCompile(`^panic: runtime error: integer divide by zero

	ordain_test\.divide \(.*fault_test\.go:14\)
	ordain_test\.TestReport\S+\.func1 \(.*fault_test\.go:\d+\)
	ordain_test\.panicOfHandler\.func2 \(.*fault_test\.go:\d+\)
`)
	if !expected.MatchString(report) || strings.Contains(report, "\truntime.") || strings.Contains(report, "\tordain.") {
		t.Errorf("report:\n%s", report)
	}
}

func TestReportOfAPanicIsShort(t *testing.T) {
	report := panicOfHandler(func() { recurse(100) })
	if !strings.HasPrefix(report, "panic: deep ☃\n\n\tordain_test.recurse (") || strings.Count(report, "\n") != 11 {
		t.Errorf("report:\n%s", report)
	}
}

func TestReportOfAPanicFormatsAnyValue(t *testing.T) {
	for _, value := range []any{"text", errors.New("text"), fmt.Stringer(ordain.Raw("text"))} {
		if report := panicOfHandler(func() { panic(value) }); !strings.HasPrefix(report, "panic: text\n") {
			t.Errorf("report of %T:\n%s", value, report)
		}
	}
}
