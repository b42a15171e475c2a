package terminal

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/oasdiff/yaml"

	"atoll.dev/internal/atomicfile"
)

// WritePrivate writes a file that only its owner may read, whole or not at all.
func WritePrivate(path string, data []byte) error { return writeWhole(path, data, 0o600) }

// writeWhole replaces a file, or makes it. A link is followed, and what is no
// file, such as /dev/stdout or a pipe, stays and is written to: to replace it,
// which root can, would break the machine.
func writeWhole(path string, data []byte, mode fs.FileMode) error {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Close())
	}
	return atomicfile.Write(path, data, mode)
}

// WritePublic replaces a file that everybody may read, whole or not at all.
func WritePublic(path string, data []byte) error { return writeWhole(path, data, 0o644) }

// ReadYAML reads YAML or JSON and returns JSON.
func (c *Session) ReadYAML(file string) (json.RawMessage, error) {
	var data []byte
	var err error
	if file == "-" {
		data, err = io.ReadAll(c.In)
	} else {
		data, err = os.ReadFile(file)
	}
	if err != nil {
		return nil, err
	}
	return YAMLToJSON(file, data)
}

// YAMLToJSON turns YAML or JSON, of which JSON is a part, into JSON. from says
// where it is from.
func YAMLToJSON(from string, data []byte) (json.RawMessage, error) {
	converted, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return converted, nil
}
