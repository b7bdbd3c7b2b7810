package ordain

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"time"
)

// LevelTrace is the level of a step of the handler, for detailed tracing. The other levels are those of log/slog.
const LevelTrace = slog.LevelDebug - 4

// hostLevel is a level of the host's log, as in the WIT.
type hostLevel uint32

const (
	hostTrace hostLevel = iota
	hostDebug
	hostInfo
	hostWarn
	hostError
)

func hostLevelOf(level slog.Level) hostLevel {
	switch {
	case level < slog.LevelDebug:
		return hostTrace
	case level < slog.LevelInfo:
		return hostDebug
	case level < slog.LevelWarn:
		return hostInfo
	case level < slog.LevelError:
		return hostWarn
	default:
		return hostError
	}
}

// hostLogger is a slog.Handler that writes each record as a line of the host's log: the message, then the attributes
// as slog.TextHandler formats them. The host adds the time, and selects the levels that it logs.
type hostLogger struct {
	line *logLine
	// attributes writes the attributes of a record to line.
	attributes slog.Handler
}

type logLine struct {
	mutex  sync.Mutex
	buffer bytes.Buffer
	write  func(level hostLevel, line string)
}

func newHostLogger(write func(level hostLevel, line string)) *hostLogger {
	line := &logLine{write: write}
	options := slog.HandlerOptions{Level: slog.Level(-1 << 31), ReplaceAttr: dropLevelAndMessage}
	return &hostLogger{line, slog.NewTextHandler(&line.buffer, &options)}
}

func dropLevelAndMessage(groups []string, attribute slog.Attr) slog.Attr {
	if len(groups) == 0 {
		if _, isLevel := attribute.Value.Any().(slog.Level); isLevel && attribute.Key == slog.LevelKey {
			return slog.Attr{}
		}
		if attribute.Key == slog.MessageKey && attribute.Value.String() == "" {
			return slog.Attr{}
		}
	}
	return attribute
}

func (logger *hostLogger) Enabled(context.Context, slog.Level) bool { return true }

func (logger *hostLogger) Handle(ctx context.Context, record slog.Record) error {
	line := logger.line
	line.mutex.Lock()
	defer line.mutex.Unlock()
	line.buffer.Reset()
	line.buffer.WriteString(record.Message)
	line.buffer.WriteByte(' ')
	attributes := slog.NewRecord(time.Time{}, record.Level, "", record.PC)
	record.Attrs(func(attribute slog.Attr) bool {
		attributes.AddAttrs(attribute)
		return true
	})
	if err := logger.attributes.Handle(ctx, attributes); err != nil {
		return err
	}
	line.write(hostLevelOf(record.Level), string(bytes.TrimRight(line.buffer.Bytes(), " \n")))
	return nil
}

func (logger *hostLogger) WithAttrs(attributes []slog.Attr) slog.Handler {
	return &hostLogger{logger.line, logger.attributes.WithAttrs(attributes)}
}

func (logger *hostLogger) WithGroup(name string) slog.Handler {
	return &hostLogger{logger.line, logger.attributes.WithGroup(name)}
}
