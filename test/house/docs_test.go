package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// widest is the greatest length of a line of prose in a document, in characters. Tables, code and
// links that are longer than a line are free.
const widest = 160

// TestDocumentsReadInATerminal checks every document: prose is wrapped, and each table has its head,
// without which Markdown shows the rows as text.
func TestDocumentsReadInATerminal(t *testing.T) {
	walkDocuments(t, func(name, text string) {
		for _, fault := range documentFaults(text) {
			t.Errorf("%s:%d: %s", name, fault.line, fault.what)
		}
	})
}

// documentFault is a line of a document that does not read well.
type documentFault struct {
	line int // from 1
	what string
}

// tableRule is the line below a table's head.
var tableRule = regexp.MustCompile(`^\|[-:| ]+\|?$`)

// documentFaults returns the lines of prose that are too long, and the tables without a head.
func documentFaults(text string) (faults []documentFault) {
	lines := strings.Split(text, "\n")
	inCode := false
	for i, line := range lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inCode = !inCode
			continue
		}
		if inCode || strings.HasPrefix(line, "    ") {
			continue
		}
		if !strings.HasPrefix(line, "|") {
			if utf8.RuneCountInString(line) > widest && strings.Contains(line, " ") {
				faults = append(faults, documentFault{i + 1, "the line is longer than 160 characters"})
			}
			continue
		}
		begins := i == 0 || !strings.HasPrefix(lines[i-1], "|")
		if begins && (i+1 == len(lines) || !tableRule.MatchString(lines[i+1])) {
			faults = append(faults, documentFault{i + 1, "the table has no head"})
		}
	}
	return faults
}

func TestDocumentFaultsAreFound(t *testing.T) {
	long := strings.Repeat("word ", 40)
	text := "short\n" + long + "\n```\n" + long + "\n```\n\n| a |\n|---|\n| b |\n\n| c |\n"
	faults := documentFaults(text)
	if len(faults) != 2 || faults[0].line != 2 || faults[1].line != 11 {
		t.Errorf("faults are %v, want line 2 (length) and line 11 (table)", faults)
	}
}

// walkDocuments calls visit with the name and text of each Markdown file of the repository.
func walkDocuments(t *testing.T, visit func(name, text string)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := entry.Name()
		if entry.IsDir() && path != "../.." && (strings.HasPrefix(base, ".") || base == "bin" || base == "node_modules") {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(base, ".md") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		visit(strings.TrimPrefix(filepath.ToSlash(path), "../../"), string(text))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
