package ordain

import (
	"errors"
	"fmt"
	"time"
)

// Failure is the reason why a call of the handler has no effect. The host discards the state and the messages of the
// failed call.
type Failure struct {
	// Reason is the reason, as text for people.
	Reason string
	// Retry is true if the host retries the event, and false if the host rejects the event for good.
	Retry bool
	// After is the delay before the retry; 0 means that the stream's retry.backoff alone determines the delay.
	After time.Duration

	cause error
}

// Reject creates an error that rejects the event for good: the host dead-letters the event with this reason, and
// continues with the next event of the key. The arguments are the arguments of [fmt.Errorf]; %w is possible.
func Reject(format string, args ...any) error {
	cause := fmt.Errorf(format, args...)
	return &Failure{Reason: cause.Error(), cause: cause}
}

// Retry creates an error after which the host retries the event, because a later try may succeed. The later events of
// the key wait. The arguments are the arguments of [fmt.Errorf].
func Retry(format string, args ...any) error {
	cause := fmt.Errorf(format, args...)
	return &Failure{Reason: cause.Error(), Retry: true, cause: cause}
}

// RetryAfter creates an error after which the host retries the event. The delay is at least 1 ms, and at most the
// longest delay of the stream's retry.backoff. The other arguments are the arguments of [fmt.Errorf].
func RetryAfter(delay time.Duration, format string, args ...any) error {
	cause := fmt.Errorf(format, args...)
	return &Failure{Reason: cause.Error(), Retry: true, After: max(delay, time.Millisecond), cause: cause}
}

// Error returns the reason.
func (failure *Failure) Error() string { return failure.Reason }

// Unwrap returns the error that contains the errors of the verbs %w.
func (failure *Failure) Unwrap() error { return failure.cause }

// FailureOf returns the failure that the host sees if a handler returns this error. An error that wraps a Failure keeps
// its own text as the reason. An error that wraps no Failure rejects the event. FailureOf(nil) returns nil.
func FailureOf(err error) *Failure {
	if err == nil {
		return nil
	}
	result := &Failure{Reason: err.Error(), cause: err}
	var failure *Failure
	if errors.As(err, &failure) {
		result.Retry = failure.Retry
		result.After = failure.After
	}
	return result
}
