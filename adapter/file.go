package adapter

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// readFile returns the content of a param's file.
func readFile(f *FileSource) (string, error) {
	in, err := os.Open(f.Path)
	if err != nil {
		return "", err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		return "", err
	}
	if len(data) > maxFile {
		return "", fmt.Errorf("%s is larger than %d bytes", f.Path, maxFile)
	}
	content := string(data)
	if f.Trim == nil || *f.Trim {
		content = strings.TrimSpace(content)
	}
	return content, nil
}
