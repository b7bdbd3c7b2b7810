package ordain

// arena gives out parts of one block of memory, from its start to its end. The host stores the arguments of a call in
// the arena. The arena itself allocates nothing.
type arena struct {
	// start is the address of the first byte that release makes free.
	start uintptr
	next  uintptr
	end   uintptr
}

// take returns the address of a part with this size and alignment. If the arena has no room, take reports false.
func (arena *arena) take(size, alignment uintptr) (address uintptr, ok bool) {
	address = aligned(arena.next, alignment)
	if address > arena.end || size > arena.end-address {
		return 0, false
	}
	arena.next = address + size
	return address, true
}

// release makes all parts free, except the parts that were kept.
func (arena *arena) release() { arena.next = arena.start }

// keep makes all parts permanent that are in use.
func (arena *arena) keep() { arena.start = arena.next }

func aligned(address, alignment uintptr) uintptr {
	return (address + alignment - 1) &^ (alignment - 1)
}
