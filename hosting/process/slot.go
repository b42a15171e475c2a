package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"atoll.dev/hosting/controlplane"
)

// slotName is the file in a plane's state that names the plane's slot. It is written once, before the first start.
const slotName = "slot"

var slotForm = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// slotOf returns the slot of a plane: what the plane's data directory, control group, user, port and mark are named by.
// A running process holds on to all of them, so they never change. A plane that was warm has the slot that its state
// names; the slot of every other plane is its ID.
func (h home) slotOf(id controlplane.ID) (controlplane.ID, error) {
	path := filepath.Join(h.state(id), slotName)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return id, fmt.Errorf("the slot of plane %s: %w", id, err)
	}
	name := strings.TrimSpace(string(content))
	if !slotForm.MatchString(name) {
		return id, fmt.Errorf("%s names no slot: restore it; the plane's data is in one of the directories %s", path,
			filepath.Join(h.dir, planesName, controlplane.WarmNamespace, "*"))
	}
	return controlplane.ID{Namespace: controlplane.WarmNamespace, Name: name}, nil
}

// slotDir returns the data directory of the plane of a slot.
func (h home) slotDir(slot controlplane.ID) string {
	return filepath.Join(h.dir, planesName, slot.Namespace, slot.Name)
}
