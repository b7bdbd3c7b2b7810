package ordain

import (
	"fmt"
	"runtime"
	"strings"
)

// traceFrames is the maximum number of frames in the report of a panic: enough to find the fault, and short enough for
// a list of dead letters.
const traceFrames = 10

// describePanic returns the text of a panic, and the functions of the handler that were active. It must be called
// directly by the deferred function that recovered the panic.
func describePanic(reason any) string {
	var report strings.Builder
	fmt.Fprintf(&report, "panic: %v\n", reason)
	counters := make([]uintptr, 64)
	counters = counters[:runtime.Callers(3, counters)]
	frames := runtime.CallersFrames(counters)
	for shown := 0; shown < traceFrames; {
		frame, more := frames.Next()
		if isHandlerFrame(frame.Function) {
			fmt.Fprintf(&report, "\n\t%s (%s:%d)", frame.Function, frame.File, frame.Line)
			shown++
		}
		if !more {
			break
		}
	}
	return strings.TrimSuffix(report.String(), "\n")
}

// isHandlerFrame returns whether a function belongs neither to Go's runtime, nor to this package and its exports.
func isHandlerFrame(function string) bool {
	for _, prefix := range []string{"runtime.", "ordain.", "ordain:"} {
		if strings.HasPrefix(function, prefix) {
			return false
		}
	}
	return function != ""
}
