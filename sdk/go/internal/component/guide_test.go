package component_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// guideSection returns the blocks of code in a section of the guide: the files by their names, and the commands. The
// paragraph before a file begins with the name of the file.
func guideSection(t *testing.T, heading string) (files map[string]string, commands []string) {
	t.Helper()
	_, section, found := strings.Cut(readFile(t, filepath.Join(sdk, "../../docs/guide/go.md")), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("no section %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	parts := strings.Split(section, "```")
	files = map[string]string{}
	for i := 1; i < len(parts); i += 2 {
		language, block, _ := strings.Cut(parts[i], "\n")
		if language == "sh" {
			commands = append(commands, block)
			continue
		}
		paragraphs := strings.Split(strings.TrimSpace(parts[i-1]), "\n\n")
		name := strings.Split(paragraphs[len(paragraphs)-1], "`")[1]
		files[name] = block
	}
	return files, commands
}

func TestHandlerOfTheGuideWorks(t *testing.T) {
	ordainProgram(t)
	files, commands := guideSection(t, "A handler, its test and its component")
	if len(files) != 5 || len(commands) != 2 {
		t.Fatalf("%d files, %d blocks of commands", len(files), len(commands))
	}
	folder, module := t.TempDir(), absolute(t, sdk)
	for name, content := range files {
		writeFile(t, filepath.Join(folder, name), strings.ReplaceAll(content, "../ordain/sdk/go", module))
	}
	expectText(t, run(t, folder, "sh", "-e", "-c", commands[0]), "ok  \thandlers/account")
	printed := run(t, folder, "sh", "-e", "-c", commands[1])
	expectText(t, printed, "ordain.toml is valid", "the balance would be -1 cents")
	first, second := strings.Index(printed, `{"balance_cents":500}`), strings.Index(printed, `{"balance_cents":200}`)
	if first < 0 || second < first {
		t.Errorf("the messages are missing, or in another order:\n%s", printed)
	}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
