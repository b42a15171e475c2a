package backups

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// refusedName is the file that names the last move that ended without the plane leaving: its data could not be packed,
// or the order was withdrawn after the file leftName was written. It is in the plane's directory of state. Without it
// each start of hosting would stop the plane again for that move.
const refusedName = "move-refused.json"

// refusedMove is the content of the file refusedName.
type refusedMove struct {
	Move    string `json:"move"`
	Message string `json:"message"`
}

// refuse ends a move because of an error of the plane's data: it removes the file leftName, and the plane runs here
// again. When the other side may have the data, refuse returns the error instead, and the plane stays stopped.
func (b *Backups) refuse(id controlplane.ID, l *leaving, reason error) error {
	have, err := b.readLeft(id)
	if err == nil && have.IsPacked {
		err = errors.New("the other management cluster may have the plane; this one cannot run it again")
	}
	if err == nil {
		b.mu.Lock()
		err = b.endMove(id, l, fmt.Sprintf("the plane stays: its data cannot move: %s", reason))
		b.mu.Unlock()
	}
	if err != nil {
		return errors.Join(reason, err)
	}
	b.o.Log.Warn("a plane cannot move, and runs here as before", "plane", id.String(), "move", l.move, "reason", reason)
	b.changed(id)
	return nil
}

// endMove writes the file refusedName with a message and removes the file leftName. The caller has made sure that the
// other side cannot have the plane, and holds Backups.mu.
func (b *Backups) endMove(id controlplane.ID, l *leaving, message string) error {
	content, err := json.Marshal(refusedMove{Move: l.move, Message: message})
	if err != nil {
		return err
	}
	dir := b.o.State(id)
	err = os.MkdirAll(dir, 0o700)
	if err == nil {
		err = atomicfile.Write(filepath.Join(dir, refusedName), content, 0o600)
	}
	if err != nil { // a full disk, for example, must not keep the plane stopped
		b.o.Log.Warn("that a move has ended could not be written to disk; hosting tries the same order again after a restart",
			"plane", id.String(), "error", err)
	}
	err = os.Remove(filepath.Join(dir, leftName))
	if err == nil {
		err = atomicfile.SyncDir(dir)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l.isNoted = false
	l.state = controlplane.Leaving{State: controlplane.LeavingRefused, Message: message}
	return nil
}

// isRefused reports whether a move has ended without the plane leaving.
func (b *Backups) isRefused(l *leaving) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return l.state.State == controlplane.LeavingRefused
}

// readRefused reads the file refusedName; the zero value when no move was refused.
func (b *Backups) readRefused(id controlplane.ID) (r refusedMove, err error) {
	if b.o.State == nil {
		return r, nil
	}
	content, err := os.ReadFile(filepath.Join(b.o.State(id), refusedName))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	if err != nil {
		return r, fmt.Errorf("reading the file %s of the plane: %w", refusedName, err)
	}
	return r, nil
}
