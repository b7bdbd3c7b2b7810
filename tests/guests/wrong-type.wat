;; A component whose exported function has the right name, but the wrong type.
(component
  (core module $m (func (export "f")))
  (core instance $i (instantiate $m))
  (func $f (canon lift (core func $i "f")))
  (instance $x (export "handle" (func $f)))
  (export "ordain:handler/handler@0.1.0" (instance $x)))
