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

	"atoll.dev/hosting/controlplane"
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

// homeName returns the name of the home of a Node's machine.
func homeName(cluster controlplane.ID, uid types.UID) string {
	return hashOf(cluster.String(), string(uid))
}

// unfinished ends the name of a home that a process is making or deleting.
const unfinished = ".tmp"

// isUnfinished reports whether a process was making or deleting the home with a name. Such a home can be deleted.
func isUnfinished(name string) bool {
	id, ok := strings.CutSuffix(name, unfinished)
	return ok && len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}

// makeHome makes the home of a node with its config and its record, all at once: there is no home without a record. It
// changes no directory that exists.
func makeHome(home string, c node.Config, r record) error {
	made := home + unfinished
	if err := os.RemoveAll(made); err != nil {
		return err
	}
	if err := os.Mkdir(made, 0o700); err != nil {
		return err
	}
	if err := errors.Join(writeConfig(made, c), r.write(made)); err != nil {
		return err
	}
	// The rename of a directory, whose files are on disk, fails when there is a directory with content.
	return errors.Join(os.Rename(made, home), atomicfile.SyncDir(filepath.Dir(home)))
}

// deleteHome deletes the home of a node. It may be repeated.
func deleteHome(home string) error {
	rest := home + unfinished
	if err := os.RemoveAll(rest); err != nil {
		return fmt.Errorf("deleting the home of a node: %w", err)
	}
	if err := os.Rename(home, rest); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("deleting the home of a node: %w", err)
	}
	if err := os.RemoveAll(rest); err != nil {
		return fmt.Errorf("deleting the home of a node: %w", err)
	}
	return nil
}

// record is the content of hosting.json in a home: whose node it is.
type record struct {
	Namespace string    `json:"namespace"`
	Cluster   string    `json:"cluster"`
	Pool      string    `json:"pool"`
	Node      string    `json:"node"`
	UID       types.UID `json:"uid"`
	Goal      goal      `json:"goal,omitempty"` // a later process pursues it
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

// Homes returns the homes of the nodes of a cluster, whose HostedCluster is in a namespace, by the names of the nodes.
// It reads the directory of Options.Dir, also while hosting runs.
func Homes(dir, namespace string) (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return nil, err
	}
	homes := map[string]string{}
	for _, home := range paths {
		if isUnfinished(filepath.Base(home)) {
			continue
		}
		r, err := readRecord(home)
		if errors.Is(err, fs.ErrNotExist) { // hosting did not make it, or is removing it
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
