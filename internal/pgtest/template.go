package pgtest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"atoll.dev/internal/postgres"
)

// A template is a data directory as initdb leaves it, in the cache directory of the user. A copy of the template costs
// 0.2 s of processor time, and initdb costs 0.9 s. The copies have one system identifier, on which no test depends.

// copyTemplate makes the data directory of a cluster from the template. Without a template it does nothing, and Init
// runs initdb.
func copyTemplate(c *postgres.Cluster) error {
	template := templateOf(c)
	if template == "" {
		return nil
	}
	if _, err := os.Stat(template); err != nil {
		return nil
	}
	return copyDir(template, c.DataDir)
}

// saveTemplate makes the template of a cluster that Init has initialised, and that was never started. It does nothing
// when there is a template. A failure only costs the next test process an initdb.
func saveTemplate(c *postgres.Cluster) {
	template := templateOf(c)
	if template == "" {
		return
	}
	if _, err := os.Stat(template); err == nil {
		return
	}
	parent := filepath.Dir(template)
	if err := os.MkdirAll(parent, 0o700); err != nil {
		return
	}
	dir, err := os.MkdirTemp(parent, "new-")
	if err != nil {
		return
	}
	defer os.RemoveAll(dir)
	if copied := filepath.Join(dir, "data"); copyDir(c.DataDir, copied) == nil {
		_ = os.Rename(copied, template) // fails when another test process was faster
	}
}

// templateOf returns the path of the template for the programs of a cluster and for this user, whether it exists or
// not. It is "" when the user has no cache directory, or the programs are not installed.
func templateOf(c *postgres.Cluster) string {
	cache, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	binaries := c.Binaries
	if binaries.Dir == "" {
		if binaries, err = postgres.Find(); err != nil {
			return ""
		}
	}
	program, err := os.Stat(binaries.Path("initdb"))
	if err != nil {
		return ""
	}
	key := fmt.Sprint(binaries.Path("initdb"), program.Size(), program.ModTime().UnixNano(), os.Getuid(), templateVersion)
	sum := sha256.Sum256([]byte(key))
	return filepath.Join(cache, "atoll", "pgtest", hex.EncodeToString(sum[:8]))
}

// templateVersion changes when package postgres calls initdb with other arguments.
const templateVersion = 1

// copyDir copies a directory with the owners and rights of its files.
func copyDir(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copying %s to %s: %w\n%s", from, to, err, out)
	}
	return nil
}
