// Package component tests components in the program ordain, whose path is in the environment variable ORDAIN. Without
// this variable, the tests that need the program are skipped.
package component_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// sdk is the folder of the SDK.
const sdk = "../.."

// ordainProgram returns the path of the program ordain.
func ordainProgram(t *testing.T) string {
	t.Helper()
	program := os.Getenv("ORDAIN")
	if program == "" {
		t.Skip("ORDAIN does not contain the path of the program ordain")
	}
	return absolute(t, program)
}

// home is a folder with a configuration and the handler conformance.
type home struct {
	t       *testing.T
	folder  string
	program string
	events  bytes.Buffer
	// next contains the next sequence of each key.
	next map[string]int
}

const configuration = `
[streams.cases]
handler = "conformance"
source = { kind = "file", path = "events.ndjson" }
[streams.cases.retry]
attempts = 2
[sinks.out]
kind = "file"
path = "out.ndjson"
[plugins]
dir = %q
timeout = "300ms"
state_size = "1MiB"
`

// plugins is the folder with the component of the handler conformance, and with the code that ordain compiles from it.
// All tests share the folder, so that ordain compiles the component once.
var plugins string

func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "ordain-go-sdk-")
	if err != nil {
		panic(err)
	}
	plugins = filepath.Join(folder, "plugins")
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// newHome returns a home that runs the handler conformance. The first call builds the component.
func newHome(t *testing.T) *home {
	t.Helper()
	home := &home{t: t, program: ordainProgram(t), folder: t.TempDir(), next: map[string]int{}}
	if component := filepath.Join(plugins, "conformance.wasm"); !exists(component) {
		core := buildCore(t, filepath.Join(sdk, "examples/conformance"))
		home.run("plugins", "wrap", core, "-o", component)
	}
	writeFile(t, filepath.Join(home.folder, "ordain.toml"), fmt.Sprintf(configuration, plugins))
	return home
}

// buildCore builds the core module of a handler, and returns its path.
func buildCore(t *testing.T, folder string) string {
	t.Helper()
	core := filepath.Join(t.TempDir(), "core.wasm")
	build := exec.Command("go", "build", "-buildmode=c-shared", "-trimpath", "-ldflags=-s -w", "-o", core, ".")
	build.Dir = folder
	build.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return core
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// run runs a command of ordain, which must succeed, and returns its output and its log.
func (home *home) run(arguments ...string) (output, log string) {
	home.t.Helper()
	command := exec.Command(home.program, arguments...)
	command.Dir = home.folder
	var stdout, stderr strings.Builder
	command.Stdout, command.Stderr = &stdout, &stderr
	command.Env = append(os.Environ(), "ORDAIN_LOG=trace")
	if err := command.Run(); err != nil {
		home.t.Fatalf("ordain %v: %v\n%s\n%s", arguments, err, &stdout, &stderr)
	}
	return stdout.String(), stderr.String()
}

// event adds an event of a key to the file of the source. The data is JSON, or any bytes.
func (home *home) event(key, kind string, data any, attributes ...string) {
	home.t.Helper()
	home.next[key]++
	event := map[string]any{
		"specversion": "1.0", "id": fmt.Sprintf("%s/%d", key, home.next[key]), "source": "/test", "type": kind,
		"subject": key, "sequence": fmt.Sprint(home.next[key]),
	}
	if content, ok := data.([]byte); ok {
		event["data_base64"] = content
	} else if data != nil {
		event["data"] = data
	}
	for i := 0; i < len(attributes); i += 2 {
		event[attributes[i]] = attributes[i+1]
	}
	if err := json.NewEncoder(&home.events).Encode(event); err != nil {
		home.t.Fatal(err)
	}
}

// message is a message in the file of the sink.
type message struct {
	Type        string          `json:"type"`
	Subject     string          `json:"subject"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"`
	DataBase64  string          `json:"data_base64"`
}

func (message message) bytes() string {
	if message.DataBase64 != "" {
		content, _ := base64.StdEncoding.DecodeString(message.DataBase64)
		return string(content)
	}
	return string(message.Data)
}

// process runs the events, and returns the messages by the key of the message, and the log.
func (home *home) process() (map[string][]message, string) {
	home.t.Helper()
	writeFile(home.t, filepath.Join(home.folder, "events.ndjson"), home.events.String())
	_, log := home.run("run", "--once")
	messages := map[string][]message{}
	for line := range strings.Lines(readFile(home.t, filepath.Join(home.folder, "out.ndjson"))) {
		var message message
		if err := json.Unmarshal([]byte(line), &message); err != nil {
			home.t.Fatal(err)
		}
		messages[message.Subject] = append(messages[message.Subject], message)
	}
	return messages, log
}

// why returns the report about a parked key.
func (home *home) why(key string) string {
	home.t.Helper()
	report, _ := home.run("keys", "why", "cases", key)
	return report
}

func (home *home) expect(messages map[string][]message, key string, expected ...string) {
	home.t.Helper()
	found := []string{}
	for _, message := range messages[key] {
		found = append(found, message.Type+" "+message.bytes())
	}
	if !reflect.DeepEqual(found, expected) {
		home.t.Errorf("messages of %s: %q, expected %q", key, found, expected)
	}
}

func expectText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

func TestOutcomesReachTheHost(t *testing.T) {
	home := newHome(t)
	binary := []byte{0, 0xff, 0xfe, '<'}
	home.event("echo ☃", "echo", binary, "datacontenttype", "image/x-test")
	home.event("state", "get", nil)
	home.event("state", "put", binary)
	home.event("state", "get", nil)
	home.event("state", "delete", nil)
	home.event("state", "get", nil)
	home.event("sum", "add", map[string]any{"amount": 5})
	home.event("sum", "add", map[string]any{"amount": -7})
	home.event("sum", "add", map[string]any{"amount": "x"})
	home.event("sum", "exact", json.RawMessage(`{"n":18446744073709551615}`))
	home.event("clock", "clock", nil, "time", "2026-01-31T12:00:00.125Z")
	home.event("many", "many", map[string]any{"messages": 3})
	home.event("reject", "reject", nil)
	home.event("reject", "unheard-of", nil)
	home.event("retry", "retry", nil)
	home.event("end", "end", nil, "endofsequence", "true")
	home.event("complete", "complete", nil)
	home.event("complete", "get", nil)
	messages, _ := home.process()

	home.expect(messages, "echo ☃", "echoed "+string(binary))
	if contentType := messages["echo ☃"][0].ContentType; contentType != "image/x-test" {
		t.Error(contentType)
	}
	home.expect(messages, "state", "state "+string(binary))
	home.expect(messages, "sum", `added {"total":5}`, `added {"total":-2}`, `exact {"n":18446744073709551615}`)
	home.expect(messages, "clock", `clock {"now_ms":1769860800125}`)
	home.expect(messages, "many/2", `many {"index":2}`)
	home.expect(messages, "end", `ended {"end":true}`)
	home.expect(messages, "complete", "completed ")
	dead, _ := home.run("dead", "list", "cases")
	expectText(t, dead, "no state", "rejected on request ☃", "unknown type unheard-of",
		`the data of this event of type "add" (14 bytes of "application/json") cannot be decoded`)
	expectText(t, home.why("retry"), "retried on request ☃")
}

func TestLinesOfTheLogHaveTheirLevels(t *testing.T) {
	home := newHome(t)
	home.event("log", "log", nil)
	home.event("log", "print", nil)
	_, log := home.process()
	for _, line := range []string{
		"TRACE trace", "DEBUG debug", "INFO info", "WARN warn", "ERROR error", "INFO printed", "WARN complained",
	} {
		level, text, _ := strings.Cut(line, " ")
		found := false
		for logged := range strings.Lines(log) {
			found = found || strings.Contains(logged, level) && strings.Contains(logged, text+" ☃")
		}
		if !found {
			t.Errorf("no line %q at the level %s in:\n%s", text, level, log)
		}
	}
}

func TestFaultsParkTheKeyWithAReport(t *testing.T) {
	home := newHome(t)
	home.event("fault", "fault", nil)
	home.event("state", "put", []byte("abc"))
	home.event("state", "add", map[string]any{"amount": 5})
	home.event("spin", "spin", nil)
	home.event("grow", "grow", nil)
	home.event("other", "add", map[string]any{"amount": 1})
	messages, _ := home.process()
	home.expect(messages, "other", `added {"total":1}`)
	report := home.why("fault")
	expectText(t, report, "panic: failed on request ☃", "main.fault (conformance/main.go:", "main.handle (conformance/main.go:")
	for _, noise := range []string{"runtime.", "ordain.Typed", "autogenerated", "goroutine"} {
		if strings.Contains(report, noise) {
			t.Errorf("%q is in the report:\n%s", noise, report)
		}
	}
	expectText(t, home.why("state"), "the state of this key (3 bytes) cannot be decoded: invalid character 'a'")
	expectText(t, home.why("spin"), "the handler ran longer than 300ms")
	expectText(t, home.why("grow"), "plugins.memory")
}

// Large arguments do not fit into the arena of the SDK. The collector must not run while the host allocates them.
func TestLargeArgumentsKeepTheirBytes(t *testing.T) {
	home := newHome(t)
	const events = 60
	for i := range events {
		home.event("large", "put", bytes.Repeat([]byte{byte(i), 0xff}, 250_000))
		home.event("large", "get", nil)
	}
	messages, _ := home.process()
	if len(messages["large"]) != events {
		t.Fatalf("%d messages; %s", len(messages["large"]), home.why("large"))
	}
	for i, message := range messages["large"] {
		if message.bytes() != string(bytes.Repeat([]byte{byte(i), 0xff}, 250_000)) {
			t.Errorf("message %d has other bytes", i)
		}
	}
}

func TestBuildsOfTheSameSourceAreEqual(t *testing.T) {
	folder := filepath.Join(sdk, "examples/orders")
	if readFile(t, buildCore(t, folder)) != readFile(t, buildCore(t, folder)) {
		t.Error("two builds differ")
	}
}

// The arena is used again for each event, also after events with arguments that did not fit.
func TestManyEventsOfManySizesKeepTheirBytes(t *testing.T) {
	home := newHome(t)
	const events = 3000
	expected := make([]string, 0, events)
	for i := range events {
		data := strings.Repeat(fmt.Sprintf("%d ☃ ", i), i*7919%(1<<uint(i%14))+1)
		home.event("many", "echo", []byte(data), "datacontenttype", "application/octet-stream")
		expected = append(expected, "echoed "+data)
	}
	messages, _ := home.process()
	home.expect(messages, "many", expected...)
}
