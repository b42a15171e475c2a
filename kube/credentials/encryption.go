package credentials

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserver "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// encryptedMark is a file in the directory of etcd. Package secrets writes it when all Secrets there are
// encrypted. It lies beside the data, so that a restore of other data does not have it.
const encryptedMark = "secrets.encrypted"

// Encrypted reports with which key the Secrets in the store are encrypted, all of them; "" is none.
func (f Files) Encrypted() (key string, err error) {
	content, err := os.ReadFile(f.encryptedMark)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	return string(content), nil
}

// MarkEncrypted records that all Secrets in the store are encrypted with a key.
func (f Files) MarkEncrypted(key string) error {
	return WriteFile(f.encryptedMark, []byte(key), 0o600)
}

// EncryptionKey returns the name of the key that encrypts Secrets when they are written; "" when they are
// written in plain text, as somebody may have configured.
func (f Files) EncryptionKey() (string, error) {
	config, err := readEncryption(f.Encryption)
	if err != nil {
		return "", err
	}
	switch first := config.Resources[0].Providers[0]; {
	case first.Secretbox != nil && len(first.Secretbox.Keys) > 0:
		return first.Secretbox.Keys[0].Name, nil
	case first.AESGCM != nil && len(first.AESGCM.Keys) > 0:
		return first.AESGCM.Keys[0].Name, nil
	case first.AESCBC != nil && len(first.AESCBC.Keys) > 0:
		return first.AESCBC.Keys[0].Name, nil
	}
	return "", nil
}

// ensureEncryption makes the configuration of the encryption of Secrets, with a new key, when there is none. A
// configuration that is there stays: with another key no Secret can be read any more.
func ensureEncryption(f Files) error {
	if _, err := readEncryption(f.Encryption); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if key, err := f.Encrypted(); err != nil {
		return err
	} else if key != "" {
		return damaged(f.Encryption, fmt.Errorf("missing, while Secrets are encrypted with its key %s", key))
	}
	secret, name := make([]byte, 32), make([]byte, 4)
	if _, err := rand.Read(secret); err != nil {
		return err
	}
	if _, err := rand.Read(name); err != nil {
		return err
	}
	content, err := yaml.Marshal(apiserver.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserver.SchemeGroupVersion.String(), Kind: "EncryptionConfiguration"},
		Resources: []apiserver.ResourceConfiguration{{Resources: []string{"secrets"},
			Providers: []apiserver.ProviderConfiguration{
				{Secretbox: &apiserver.SecretboxConfiguration{Keys: []apiserver.Key{{
					Name: hex.EncodeToString(name), Secret: base64.StdEncoding.EncodeToString(secret),
				}}}},
				// Reads the Secrets that were written before the plane had a key.
				{Identity: &apiserver.IdentityConfiguration{}},
			}}},
	})
	if err != nil {
		return err
	}
	return WriteFile(f.Encryption, content, 0o600)
}

// readEncryption reads a configuration. Errors never contain its content: it is a key.
func readEncryption(path string) (apiserver.EncryptionConfiguration, error) {
	var config apiserver.EncryptionConfiguration
	content, err := os.ReadFile(path)
	if err != nil {
		return config, err
	}
	if yaml.UnmarshalStrict(content, &config) != nil || len(config.Resources) == 0 ||
		len(config.Resources[0].Providers) == 0 {
		return config, damaged(path, errors.New("no EncryptionConfiguration with a provider in it"))
	}
	return config, nil
}

// encryptionFiles are the paths of the encryption of Secrets, below the plane's directory.
func encryptionFiles(dir string) (config, mark string) {
	return filepath.Join(dir, "pki", "encryption.yaml"), filepath.Join(dir, "etcd", encryptedMark)
}
