package objectstore

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"atoll.dev/internal/atomicfile"
)

// keyPair is the key pair that signs requests.
type keyPair struct{ accessKey, secretKey string }

// openKeyPair reads the key pair from a file, as AWS's programs keep it, and makes the file when it is missing.
func openKeyPair(path string) (keyPair, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		p := keyPair{"ATOLL" + strings.ToUpper(hex.EncodeToString(randomBytes(8))),
			base64.RawURLEncoding.EncodeToString(randomBytes(32))}
		return p, atomicfile.Write(path, fmt.Appendf(nil, "[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n",
			p.accessKey, p.secretKey), 0o600)
	}
	if err != nil {
		return keyPair{}, err
	}
	var p keyPair
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(line, "=")
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			p.accessKey = strings.TrimSpace(value)
		case "aws_secret_access_key":
			p.secretKey = strings.TrimSpace(value)
		}
	}
	if p.accessKey == "" || p.secretKey == "" {
		return keyPair{}, fmt.Errorf("%s has no aws_access_key_id or no aws_secret_access_key", path)
	}
	return p, nil
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}
