package ordain

import (
	"log/slog"
	"reflect"
	"testing"
)

func TestLogLinesHaveTheMessageFirstAndTheLevelOfTheHost(t *testing.T) {
	type line struct {
		level hostLevel
		text  string
	}
	var lines []line
	logger := slog.New(newHostLogger(func(level hostLevel, text string) { lines = append(lines, line{level, text}) }))
	logger.Log(t.Context(), LevelTrace, "trace ☃")
	logger.Debug("debug", "level", "high", "time", 3)
	logger.With("a", 1).WithGroup("g").Info("two words", "msg", "x y")
	logger.Warn("warn")
	logger.Error("", "err", "broken")
	logger.Log(t.Context(), slog.LevelError+100, "two\nlines")
	expected := []line{
		{hostTrace, "trace ☃"},
		{hostDebug, "debug level=high time=3"},
		{hostInfo, `two words a=1 g.msg="x y"`},
		{hostWarn, "warn"},
		{hostError, " err=broken"},
		{hostError, "two\nlines"},
	}
	if !reflect.DeepEqual(lines, expected) {
		t.Errorf("lines %q\nexpected %q", lines, expected)
	}
}
