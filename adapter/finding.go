package adapter

import (
	"strconv"
	"strings"
)

// Finding is one problem in a file.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line"`           // from 1; 0 is the file as a whole
	Path    string `json:"path,omitempty"` // as preconditions[0].conditions[1].operator
	Message string `json:"message"`
	Warning bool   `json:"warning,omitempty"` // it works, but should not stay
}

func (f Finding) String() string {
	s := f.File
	if f.Line > 0 {
		s += ":" + strconv.Itoa(f.Line)
	}
	s += ": "
	if f.Warning {
		s += "warning: "
	}
	if f.Path != "" {
		s += f.Path + ": "
	}
	return s + f.Message
}

// Findings are all problems, ordered by file and line. As an error they are its lines.
type Findings []Finding

func (f Findings) Error() string {
	lines := make([]string, len(f))
	for i, x := range f {
		lines[i] = x.String()
	}
	return strings.Join(lines, "\n")
}

// err returns the findings as an error; nil without findings.
func (f Findings) err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

// Place is a position in a file.
type Place struct {
	File string
	Line int
	Path string
}
