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
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserver "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// encryptedMark is a file in the directory of etcd. Package secrets writes it when all Secrets there are
// encrypted. It lies beside the data, so that a restore of other data does not have it.
const encryptedMark = "secrets.encrypted"

// restoredKeys is a file in the directory of etcd: the configuration of the encryption of Secrets that the plane of the
// data had. A restore writes it, because the data may be of another plane, or of before a change of the key.
const restoredKeys = "secrets.keys"

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
		if err == nil {
			err = addRestoredKeys(f)
		}
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
	if err := WriteFile(f.Encryption, content, 0o600); err != nil {
		return err
	}
	return addRestoredKeys(f)
}

// addRestoredKeys adds the keys that came with restored data to the configuration, after the plane's own. They only
// decrypt: package secrets encrypts everything with the plane's own key. Keys that are there already change nothing.
func addRestoredKeys(f Files) error {
	restored, err := readEncryption(f.restoredKeys)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	own, err := readEncryption(f.Encryption)
	if err != nil {
		return err
	}
	providers := own.Resources[0].Providers
	at := slices.IndexFunc(providers, isSecretbox)
	if at < 0 {
		return nil // somebody has configured another encryption
	}
	box, count := providers[at].Secretbox, len(providers[at].Secretbox.Keys)
	for _, provider := range restored.Resources[0].Providers {
		if !isSecretbox(provider) {
			continue
		}
		for _, key := range provider.Secretbox.Keys {
			if !slices.Contains(box.Keys, key) {
				box.Keys = append(box.Keys, key)
			}
		}
	}
	if len(box.Keys) == count {
		return nil
	}
	content, err := yaml.Marshal(own)
	if err != nil {
		return err
	}
	return WriteFile(f.Encryption, content, 0o600)
}

func isSecretbox(p apiserver.ProviderConfiguration) bool { return p.Secretbox != nil }

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
func encryptionFiles(dir string) (config, mark, restored string) {
	etcd := filepath.Join(dir, "etcd")
	return filepath.Join(dir, "pki", "encryption.yaml"), filepath.Join(etcd, encryptedMark),
		filepath.Join(etcd, restoredKeys)
}
