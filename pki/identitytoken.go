package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"atoll.dev/internal/atomicfile"
)

// token returns the join token, or "" when there is none or it was redeemed.
func (id *Identity) token() (string, error) {
	text, err := id.tokenText()
	if err != nil || text == "" {
		return "", err
	}
	spent, err := os.ReadFile(filepath.Join(id.o.Dir, spentFile))
	if err == nil && string(spent) == tokenHash(text) {
		return "", id.removeToken()
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return text, err
}

// tokenText returns the configured join token or the content of its file.
func (id *Identity) tokenText() (string, error) {
	if id.o.Token != "" || id.o.TokenFile == "" {
		return id.o.Token, nil
	}
	data, err := os.ReadFile(id.o.TokenFile)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the join token: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}

// dropToken records that the join token was redeemed, and removes its file. It is called
// once the certificate is on disk.
func (id *Identity) dropToken() error {
	text, err := id.tokenText()
	if err != nil || text == "" {
		return err
	}
	if err := atomicfile.Write(filepath.Join(id.o.Dir, spentFile), []byte(tokenHash(text)), 0o600); err != nil {
		return err
	}
	return id.removeToken()
}

// removeToken removes the token's file. A file that cannot be removed, such as a mounted
// Secret, stays without an error.
func (id *Identity) removeToken() error {
	if id.o.TokenFile == "" {
		return nil
	}
	err := os.Remove(id.o.TokenFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) ||
		errors.Is(err, syscall.EBUSY) {
		return nil
	}
	return err
}
