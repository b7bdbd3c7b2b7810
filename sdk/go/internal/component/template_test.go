package component_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// newProject writes a project from the template, as the command `ordain new` does, and returns its folder.
func newProject(t *testing.T, name string) string {
	t.Helper()
	project := t.TempDir()
	template := filepath.Join(sdk, "template")
	list := readFile(t, filepath.Join(template, "README-for-new.txt"))
	for line := range strings.Lines(list) {
		if source, target, found := strings.Cut(strings.TrimSpace(line), " -> "); found && line[0] != '#' {
			target = filepath.Join(project, "vendor/ordain-sdk", target)
			writeFile(t, target, readFile(t, filepath.Join(sdk, source)))
		}
	}
	err := filepath.WalkDir(template, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "README-for-new.txt" {
			return err
		}
		target, err := filepath.Rel(template, path)
		if target == "gitignore" {
			target = ".gitignore"
		}
		writeFile(t, filepath.Join(project, target), strings.ReplaceAll(readFile(t, path), "{{name}}", name))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return project
}

func TestProjectContainsAllFilesOfTheSDK(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(sdk, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	project := newProject(t, "account-history")
	for _, source := range sources {
		name := filepath.Base(source)
		_, err := os.Stat(filepath.Join(project, "ordain-sdk", name))
		if isTest := strings.HasSuffix(name, "_test.go"); isTest != os.IsNotExist(err) {
			t.Errorf("%s: %v; correct the list in README-for-new.txt", name, err)
		}
	}
}

func TestTestsOfAProjectPass(t *testing.T) {
	project := newProject(t, "account-history")
	output := run(t, project, "go", "test", "-v", "./...")
	if !strings.Contains(output, "--- PASS: TestWithdrawalBeyondTheBalanceIsRejected") {
		t.Error(output)
	}
	run(t, project, "go", "vet", "./...")
}

func TestProjectRunsInOrdain(t *testing.T) {
	program := ordainProgram(t)
	project := newProject(t, "account-history")
	run(t, project, "go", "generate", "./handler")
	messages := run(t, project, program, "run", "--once")
	for _, expected := range []string{`{"balance_cents":1000}`, `{"balance_cents":700}`, `{"balance_cents":750}`} {
		if !strings.Contains(messages, expected) {
			t.Errorf("%s is missing in %s", expected, messages)
		}
	}
	dead := run(t, project, program, "dead", "list", "account-history")
	if !strings.Contains(dead, "the balance is only 500 cents") {
		t.Error(dead)
	}
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

// run runs a program, which must succeed, and returns its standard output.
func run(t *testing.T, folder, program string, arguments ...string) string {
	t.Helper()
	command := exec.Command(program, arguments...)
	command.Dir = folder
	command.Stderr = new(strings.Builder)
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s\n%s", program, arguments, err, output, command.Stderr)
	}
	return string(output)
}
