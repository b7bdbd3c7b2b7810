package ordain

import "testing"

func FuzzArenaPartsAreSeparate(f *testing.F) {
	f.Add([]byte{1, 8, 255, 3, 0, 16, 254})
	f.Add([]byte{100, 100, 255, 100, 100, 100, 253, 100})
	f.Fuzz(func(t *testing.T, steps []byte) {
		arena := arena{start: 4096, next: 4096, end: 4096 + 512}
		kept, used := uintptr(4096), uintptr(4096)
		for _, step := range steps {
			switch step {
			case 255:
				arena.release()
				used = kept
			case 254:
				arena.keep()
				kept = used
			default:
				size, alignment := uintptr(step>>2), uintptr(1)<<(step&3)
				address, ok := arena.take(size, alignment)
				padded := (used + alignment - 1) / alignment * alignment
				if fits := padded+size <= 4096+512; ok != fits {
					t.Fatalf("%d bytes at %d: %v, expected %v", size, used, ok, fits)
				}
				if !ok {
					continue
				}
				if address != padded {
					t.Fatalf("address %d, expected %d", address, padded)
				}
				used = address + size
			}
		}
	})
}

func TestArenaRefusesSizesBeyondTheAddressSpace(t *testing.T) {
	arena := arena{start: 4096, next: 4097, end: 8192}
	if address, ok := arena.take(^uintptr(0)-4000, 8); ok {
		t.Errorf("the arena gave %d", address)
	}
}
