package backup

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
	"atoll.dev/internal/strictyaml"
)

// Config is the content of the file that names a store, as YAML. An unknown key is an error. Paths are relative to the
// file.
type Config struct {
	Bucket   string `yaml:"bucket"`
	Prefix   string `yaml:"prefix"`   // of all objects; several regions may share a bucket
	Region   string `yaml:"region"`   // default us-east-1
	Endpoint string `yaml:"endpoint"` // https://HOST of a store that is not AWS's
	// CredentialsFile is a credentials file of AWS: aws_access_key_id, aws_secret_access_key and perhaps
	// aws_session_token, each on a line with "=". A change takes effect with the next request.
	CredentialsFile string `yaml:"credentials_file"`
	KeyFile         string `yaml:"key_file"` // see envelope.KeyFile
	// KMS is unix:///PATH, the socket of a KMS v2 plugin of Kubernetes, which encrypts instead of the key file. A key
	// file beside it decrypts what was encrypted with it before.
	KMS string `yaml:"kms"`
	// LockDays is the number of days for which Object Lock protects the stored objects; 0: no lock. LockMode is
	// governance, the default, or compliance. See Lock.
	LockDays int    `yaml:"lock_days"`
	LockMode string `yaml:"lock_mode"`
	// BytesPerSecond bounds all uploads; 0: no limit.
	BytesPerSecond int `yaml:"bytes_per_second"`
}

// ReadConfig reads the file at path, the credentials and the keys that it names. It asks a KMS plugin nothing: as with
// the store, what needs it fails while it is away, and planes run. The caller closes the keys.
func ReadConfig(path string) (*S3, kms.Keys, error) {
	store, c, err := readStore(path)
	if err != nil {
		return nil, kms.Keys{}, err
	}
	keys, err := readKeys(path, c)
	if err != nil {
		return nil, kms.Keys{}, err
	}
	return store, keys, nil
}

func readKeys(path string, c Config) (none kms.Keys, err error) {
	if c.KeyFile == "" && c.KMS == "" {
		return none, fmt.Errorf("object store: %s: key_file or kms is needed", path)
	}
	var file *envelope.KeyFile
	if c.KeyFile != "" {
		if file, err = envelope.ReadKeyFile(beside(path, c.KeyFile)); err != nil {
			return none, err
		}
	}
	var plugin *kms.Plugin
	if c.KMS != "" {
		if plugin, err = kms.New(c.KMS); err != nil {
			return none, fmt.Errorf("object store: %s: kms: %w", path, err)
		}
	}
	return kms.NewKeys(file, plugin), nil
}

// ReadStore reads the file at path and the credentials that it names, for objects that are not encrypted by their
// writer.
func ReadStore(path string) (*S3, error) {
	store, _, err := readStore(path)
	return store, err
}

func readStore(path string) (*S3, Config, error) {
	var c Config
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, c, fmt.Errorf("object store: %w", err)
	}
	if err := strictyaml.Decode(path, content, &c, strictyaml.Options{}); err != nil {
		return nil, c, fmt.Errorf("object store: %w", err)
	}
	if c.CredentialsFile == "" {
		return nil, c, fmt.Errorf("object store: %s: credentials_file is needed", path)
	}
	credentials := &credentialsFile{path: beside(path, c.CredentialsFile)}
	if _, err := credentials.Retrieve(context.Background()); err != nil {
		return nil, c, err
	}
	lock, err := parseLock(c.LockDays, c.LockMode)
	if err != nil {
		return nil, c, fmt.Errorf("object store: %s: %w", path, err)
	}
	store, err := NewS3(S3Options{
		Lock:   lock,
		Bucket: c.Bucket, Prefix: strings.Trim(c.Prefix, "/"), Region: c.Region, Endpoint: c.Endpoint,
		Credentials: credentials, BytesPerSecond: c.BytesPerSecond,
	})
	if err != nil {
		return nil, c, fmt.Errorf("object store: %s: %w", path, err)
	}
	return store, c, nil
}

// beside returns the path of a file that the file at path names.
func beside(path, name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(filepath.Dir(path), name)
}
