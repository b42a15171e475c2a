package adapter

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// readFile is a param's file as it is now.
func readFile(f *FileSource, required bool) (any, error) {
	in, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", f.Path, maxFile)
	}
	content := string(data)
	if f.Trim == nil || *f.Trim {
		content = strings.TrimSpace(content)
	}
	if required && strings.TrimSpace(content) == "" {
		return nil, fmt.Errorf("%s is empty", f.Path)
	}
	return content, nil
}
