package ordain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"unicode/utf8"
)

// Raw is bytes without conversion, for the data of an event, a state, or the data of a message.
type Raw []byte

// String returns the bytes as text.
func (raw Raw) String() string { return string(raw) }

// decode decodes the bytes as JSON, unless T is Raw.
func decode[T any](encoded []byte) (T, error) {
	var value T
	if raw, ok := any(&value).(*Raw); ok {
		*raw = encoded
		return value, nil
	}
	if !utf8.Valid(encoded) {
		// The package json would replace the invalid bytes without an error.
		return value, errors.New("the text is not UTF-8")
	}
	if isNull(encoded) {
		if !acceptsNull[T]() {
			return value, fmt.Errorf("empty data or null cannot be a %T", value)
		}
		encoded = []byte("null")
	}
	err := json.Unmarshal(encoded, &value)
	return value, err
}

func isNull(encoded []byte) bool {
	trimmed := bytes.TrimSpace(encoded)
	return len(trimmed) == 0 || string(trimmed) == "null"
}

// acceptsNull returns whether null is a value of T. The package json would ignore null for every other type.
func acceptsNull[T any]() bool {
	if _, ok := any(new(T)).(json.Unmarshaler); ok {
		return true
	}
	switch of := reflect.TypeFor[T](); of.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return true
	case reflect.Struct:
		return of.NumField() == 0
	default:
		return false
	}
}

// encode encodes the value as JSON, unless it is Raw. The text contains <, > and & as they are.
func encode(value any) ([]byte, error) {
	if raw, ok := value.(Raw); ok {
		return raw, nil
	}
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), nil
}
