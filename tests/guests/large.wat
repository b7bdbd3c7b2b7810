;; A handler that needs more memory at its start than `plugins.memory` allows.
(module
  (memory (export "memory") 2000)
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) (i32.const 65536))
  (func (export "ordain:handler/handler@0.1.0#handle") (param i32) (result i32) (unreachable))
)
