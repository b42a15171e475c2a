package localnodes

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/node"
)

// idLength is the number of characters of the name of a home.
const idLength = 8

// hashOf returns a name for a few texts.
func hashOf(texts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(texts, "\x00")))
	return fmt.Sprintf("%x", sum)[:idLength]
}

// record is the content of hosting.json in a home: whose node it is. It is written after the config, so that a home
// with a record has a config.
type record struct {
	Namespace string    `json:"namespace"`
	Cluster   string    `json:"cluster"`
	Pool      string    `json:"pool"`
	Node      string    `json:"node"`
	UID       types.UID `json:"uid"`
}

func readRecord(home string) (record, error) {
	var r record
	data, err := os.ReadFile(filepath.Join(home, "hosting.json"))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", home, err)
	}
	return r, nil
}

func (r record) write(home string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(home, "hosting.json"), data, 0o600)
}

// configFile is the file of `atoll node run --config`.
func configFile(home string) string { return filepath.Join(home, "config.json") }

func writeConfig(home string, c node.Config) error {
	data, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(configFile(home), data, 0o600)
}

// hasJoined reports whether kubelet has a client certificate.
func hasJoined(home string) bool {
	_, err := os.Lstat(filepath.Join(home, "kubelet", "pki", "kubelet-client-current.pem"))
	return err == nil
}

// Homes returns the homes of the nodes of a cluster, whose HostedCluster is in a namespace, by the names of the nodes.
// It reads the directory of Options.Dir, also while hosting runs.
func Homes(dir, namespace string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	homes := map[string]string{}
	for _, home := range paths {
		r, err := readRecord(home)
		if errors.Is(err, fs.ErrNotExist) { // it is being made or removed
			continue
		}
		if err != nil {
			return nil, err
		}
		if r.Namespace == namespace {
			homes[r.Node] = home
		}
	}
	return homes, nil
}
