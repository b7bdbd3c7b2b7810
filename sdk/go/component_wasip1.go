package ordain

// This file connects the handler to the host: the exports and imports of wit/handler.wit, and the memory that the host
// and the adapter of WASI preview 1 allocate.

import (
	"log/slog"
	"os"
	"unsafe"
)

// arenaBytes is the size of the arena for the arguments of a call. Larger arguments take memory of Go's heap.
const arenaBytes = 256 << 10

// arenaMemory exists before the Go runtime has started: the adapter allocates its own state from it at the first import
// that the runtime calls. The type makes the memory a multiple of 8.
var arenaMemory [arenaBytes / 8]uint64

var arguments arena

// overflow keeps the arguments that did not fit into the arena. Its capacity exceeds the number of lists and strings of
// most events, so that append rarely allocates.
var overflow = make([][]byte, 0, 64)

// procPin makes the running goroutine keep its thread. The collector neither starts nor assists on a pinned thread.
//
//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()

// pauseClock makes the adapter answer with the last time that it knows, instead of calling the host.
//
//go:wasmimport wasi_snapshot_preview1 adapter_monotonic_clock_set_paused
func pauseClock(paused bool)

// allocate gives memory to the host and to the adapter. While allocate runs, a call of an import is a trap. A usual
// allocation of Go may start the collector, which reads the clock. Before the Go runtime has started, no allocation is
// possible at all.
//
//go:wasmexport cabi_realloc
func allocate(old, oldSize, alignment, size uint32) uint32 {
	if arguments.end == 0 {
		start := uintptr(unsafe.Pointer(&arenaMemory))
		arguments = arena{start: start, next: start, end: start + arenaBytes}
	}
	address, ok := arguments.take(uintptr(size), uintptr(alignment))
	if !ok {
		address = allocateOverflow(size, alignment)
	}
	if oldSize > 0 {
		copy(bytesAt(uint32(address), size), bytesAt(old, oldSize))
	}
	return uint32(address)
}

func allocateOverflow(size, alignment uint32) uintptr {
	pauseClock(true)
	procPin()
	content := make([]byte, size+alignment)
	overflow = append(overflow, content)
	procUnpin()
	pauseClock(false)
	return aligned(uintptr(unsafe.Pointer(unsafe.SliceData(content))), uintptr(alignment))
}

// linearMemory is the memory of the component. It keeps the parts of a result until the host has read the result.
type linearMemory struct {
	held [][]byte
}

func (*linearMemory) at(address uint32) unsafe.Pointer { return pointer(address) }

func (memory *linearMemory) hold(content []byte) uint32 {
	memory.held = append(memory.held, content)
	return uint32(uintptr(unsafe.Pointer(unsafe.SliceData(content))))
}

func pointer(address uint32) unsafe.Pointer { return unsafe.Add(unsafe.Pointer(nil), address) }

func bytesAt(address, size uint32) []byte { return unsafe.Slice((*byte)(pointer(address)), size) }

var (
	linear linearMemory
	result resultRecord
)

//go:wasmexport ordain:handler/handler@0.1.0#handle
func handle(address uint32) uint32 {
	event, state := liftCall(&linear, address)
	arguments.release()
	clear(overflow)
	overflow = overflow[:0]

	result = callComponent(event, state)

	// The adapter may keep memory that it allocated during the call.
	arguments.keep()
	return uint32(uintptr(unsafe.Pointer(&result)))
}

func callComponent(event Event[Raw], state *Raw) resultRecord {
	defer func() {
		if reason := recover(); reason != nil {
			fail(describePanic(reason))
		}
	}()
	if component == nil {
		panic("this component has no handler: the function init of the main package must call ordain.Handle")
	}
	outcome, err := component(event, state)
	if err != nil {
		return lowerFailure(&linear, FailureOf(err))
	}
	return lowerOutcome(&linear, outcome)
}

// release frees the result, which the host has read.
//
//go:wasmexport cabi_post_ordain:handler/handler@0.1.0#handle
func release(uint32) {
	clear(linear.held)
	linear.held = linear.held[:0]
}

//go:wasmimport ordain:handler/logging@0.1.0 log
func hostLog(level hostLevel, line unsafe.Pointer, length uint32)

//go:wasmimport ordain:handler/fault@0.1.0 fail
func hostFail(message unsafe.Pointer, length uint32)

func writeHostLog(level hostLevel, line string) {
	hostLog(level, unsafe.Pointer(unsafe.StringData(line)), uint32(len(line)))
}

// fail ends the call because of a fault. It does not return.
func fail(message string) {
	hostFail(unsafe.Pointer(unsafe.StringData(message)), uint32(len(message)))
	os.Exit(2)
}

func init() {
	arguments.keep()
	slog.SetDefault(slog.New(newHostLogger(writeHostLog)))
}
