;; A handler that the data of its event controls. The data are pairs of u32: an address and a value. The handler stores
;; each value at its address, and returns the outcome at address 0.
(module
  (memory $memory (export "memory") 960)
  (global $top (mut i32) (i32.const 0x100000))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
    (global.set $top (i32.add (local.get $at) (local.get 3)))
    (local.get $at))
  (func $handle (export "ordain:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (local $at i32) (local $end i32)
    (local.set $at (i32.load offset=80 (local.get $event)))
    (local.set $end (i32.add (local.get $at) (i32.load offset=84 (local.get $event))))
    (block $done
      (loop $next
        (br_if $done (i32.ge_u (local.get $at) (local.get $end)))
        (i32.store (i32.load (local.get $at)) (i32.load offset=4 (local.get $at)))
        (local.set $at (i32.add (local.get $at) (i32.const 8)))
        (br $next)))
    (i32.const 0)))
