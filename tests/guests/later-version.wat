;; A component that exports a later version of the handler interface.
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $x (export "handle" (func $f)))
  (export "ordain:handler/handler@0.2.0" (instance $x)))
