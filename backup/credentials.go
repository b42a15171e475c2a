package backup

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
)

// credentialsFile provides the credentials of a store from a credentials file of AWS. It reads the file again when the
// file has changed, so that credentials rotate without a restart.
type credentialsFile struct {
	path string

	mu       sync.Mutex
	modified time.Time // of the file that was read
	size     int64
	read     aws.Credentials
}

// Retrieve implements aws.CredentialsProvider.
func (c *credentialsFile) Retrieve(context.Context) (aws.Credentials, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := os.Stat(c.path)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("credentials of the object store: %w", err)
	}
	if c.read.HasKeys() && info.ModTime().Equal(c.modified) && info.Size() == c.size {
		return c.read, nil
	}
	content, err := os.ReadFile(c.path)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("credentials of the object store: %w", err)
	}
	read, err := parseCredentials(content)
	if err != nil {
		return aws.Credentials{}, fmt.Errorf("credentials of the object store: %s: %w", c.path, err)
	}
	c.modified, c.size, c.read = info.ModTime(), info.Size(), read
	return read, nil
}

// parseCredentials parses a credentials file of AWS and returns the first profile.
func parseCredentials(content []byte) (read aws.Credentials, err error) {
	lines := bufio.NewScanner(bytes.NewReader(content))
	for profiles := 0; lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			if profiles++; profiles > 1 {
				break
			}
		}
		name, value, _ := strings.Cut(line, "=")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(name) {
		case "aws_access_key_id":
			read.AccessKeyID = value
		case "aws_secret_access_key":
			read.SecretAccessKey = value
		case "aws_session_token":
			read.SessionToken = value
		}
	}
	if !read.HasKeys() {
		return aws.Credentials{}, errors.New("it has no aws_access_key_id or no aws_secret_access_key")
	}
	return read, lines.Err()
}
