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

// WritePrivate replaces a file atomically; only its owner may read it.
func WritePrivate(path string, data []byte) error { return writeAtomically(path, data, 0o600) }

// writeAtomically replaces or creates a file atomically. It follows a symbolic link. It writes into
// anything that is no regular file, such as /dev/stdout or a pipe: root could replace such a file,
// which would break the machine.
func writeAtomically(path string, data []byte, mode fs.FileMode) error {
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

// WritePublic replaces a file atomically; everybody may read it.
func WritePublic(path string, data []byte) error { return writeAtomically(path, data, 0o644) }

// ReadFile reads a file, or standard input for "-".
func (session *Session) ReadFile(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(session.In)
	}
	return os.ReadFile(file)
}

// ReadYAML reads a file, or standard input for "-", as YAML or JSON, and returns JSON.
func (session *Session) ReadYAML(file string) (json.RawMessage, error) {
	data, err := session.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return YAMLToJSON(file, data)
}

// YAMLToJSON converts YAML, of which JSON is a subset, to JSON. Errors name from, the source of
// data.
func YAMLToJSON(from string, data []byte) (json.RawMessage, error) {
	converted, err := yaml.YAMLToJSON(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return converted, nil
}
