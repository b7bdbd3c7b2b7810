;; A handler that never finishes its start, so the host cannot call it.
(module
  (memory (export "memory") 2)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536))
  (func (export "ordain:handler/handler@0.1.0#handle") (param i32) (result i32) (unreachable))
  (func $start (loop (br 0)))
  (start $start))
