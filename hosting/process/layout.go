package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"atoll.dev/internal/atomicfile"
)

// layoutName is the file that shows that no runtime's file is below planes any more.
const layoutName = "layout"

const presentLayout = "2\n"

// migrate moves what earlier runtimes kept in the planes' own directories to the directories of the state, once for a
// home. It may be interrupted and repeated. Afterwards a file of such a name in a plane's directory is the plane's, and
// nobody reads it. Processes that run go on to write the log that was moved.
func (h home) migrate() error {
	marker := filepath.Join(h.dir, layoutName)
	if content, err := os.ReadFile(marker); err == nil && string(content) == presentLayout {
		return nil
	}
	for _, id := range h.planes() {
		entries, err := os.ReadDir(h.plane(id))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			isFile := e.Name() == "hosting.json" || e.Name() == "plane.log" || e.Name() == "plane.log.1"
			isRestore := strings.HasPrefix(e.Name(), restoredPrefix)
			from, to := filepath.Join(h.plane(id), e.Name()), filepath.Join(h.state(id), e.Name())
			switch {
			case isFile && e.Type().IsRegular(), isRestore && e.IsDir():
				if err := os.MkdirAll(h.state(id), 0o700); err != nil {
					return err
				}
				if err := os.Rename(from, to); err != nil {
					return fmt.Errorf("moving %s: %w", from, err)
				}
			case isFile || isRestore: // a link, for example
				if err := os.Remove(from); err != nil {
					return err
				}
			}
		}
		if _, err := os.Lstat(h.state(id)); err == nil {
			if err := atomicfile.SyncDir(h.state(id)); err != nil {
				return err
			}
		}
	}
	return atomicfile.Write(marker, []byte(presentLayout), 0o600)
}
