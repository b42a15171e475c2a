package envelope

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"time"
)

// rereadAfter is how long a KeyFile uses what it has read. A file that cannot be read changes nothing.
const rereadAfter = time.Second

// latest returns the keys, and reads the file again when what it has is older than rereadAfter.
func (k *KeyFile) latest() keyList {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.path != "" && time.Since(k.readAt) > rereadAfter {
		if keys, err := readKeys(k.path); err == nil {
			k.keys = keys
		}
		k.readAt = time.Now()
	}
	return k.keys
}

// ParseKeys returns the keys that a key file with this content has.
func ParseKeys(content []byte) (*KeyFile, error) {
	keys, err := parseKeys(content)
	if err != nil {
		return nil, err
	}
	return &KeyFile{keys: keys}, nil
}

// NewKeyLine returns the line of a key file for a new key. The name has no space and does not begin with #.
func NewKeyLine(name string) []byte {
	key := make([]byte, keySize)
	rand.Read(key) // it never returns an error
	return fmt.Appendf(nil, "%s %s\n", name, base64.StdEncoding.EncodeToString(key))
}
