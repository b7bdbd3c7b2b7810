;; A handler that ends each call because of a fault. The message of the fault is the data of the event.
(module
  (import "ordain:handler/fault@0.1.0" "fail" (func $fail (param i32 i32)))
  (memory (export "memory") 960)
  (global $top (mut i32) (i32.const 0x100000))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $top) (i32.const 7)) (i32.const -8)))
    (global.set $top (i32.add (local.get $at) (local.get 3)))
    (local.get $at))
  (func (export "ordain:handler/handler@0.1.0#handle") (param $event i32) (result i32)
    (call $fail (i32.load offset=80 (local.get $event)) (i32.load offset=84 (local.get $event)))
    (i32.const 0)))
