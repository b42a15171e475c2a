package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
)

// maxPastData bounds the list of restores in a plane's record.
const maxPastData = 50

// Restored data of a plane waits in a directory of its own below that of the plane's state, where no plane can replace
// what hosting prepares:
//
//	restored-ID/etcd        the data, until it becomes the plane's
//	restored-ID/replaced    the plane's data before, from then on
//	restored-ID/pki         optional: controlplane.StagedKeys
//	restored-ID/past.json   optional: controlplane.StagedPast
//
// Who prepared the data may keep other files there, and removes the directory when the plane runs with the data.
const (
	restoredPrefix = "restored-"
	replacedName   = "replaced"
)

func etcdDir(dir string) string { return filepath.Join(dir, "etcd") }

// Staging returns the directory in which the data of a restore waits, whether or not it exists.
func (r *Runtime) Staging(id controlplane.ID, data string) string {
	return filepath.Join(r.home.state(id), restoredPrefix+data)
}

// errNoData is the error of restored data that is not there.
var errNoData = errors.New("the restored data is not in the directory of the plane's state")

// errNotLost is the error of a recovery or an arrival whose plane has data, which would be deleted and may be newer.
var errNotLost = errors.New("the plane has data, and hosting has no record of it: an operator puts the record back, " +
	"or moves the data away, and the plane is recovered from its backup")

// takeData makes restored data, its keys and its past those of a stopped plane, and puts them into its next record.
func (x *runner) takeData(next *record, data string) error {
	if data == next.Data {
		return replaceData(x.dir, x.state, next.Data, data)
	}
	staging := x.runtime.Staging(x.id, data)
	if err := takeKeys(x.dir, staging); err != nil {
		return fmt.Errorf("the keys of a lost plane: %w", err)
	}
	if err := replaceData(x.dir, x.state, next.Data, data); err != nil {
		return err
	}
	past, err := addPast(slices.Insert(slices.Clone(next.PastData), 0, next.Data), staging)
	if err != nil {
		return err
	}
	next.Data, next.PastData = data, past
	return nil
}

// replaceData makes the restored data want the data of a stopped plane that last ran with have. A call that was
// interrupted anywhere is completed by the next one. When have and want are the same, it undoes what an interrupted
// call for other data has begun: a plane must never start without its data.
func replaceData(dir, state, have, want string) error {
	if have == want {
		return returnData(dir, state)
	}
	staging := filepath.Join(state, restoredPrefix+want)
	isStaged, err := exists(etcdDir(staging))
	if err != nil {
		return err
	}
	if !isStaged { // it was moved already, and only the record is missing
		isThere, err := exists(etcdDir(dir))
		if err == nil && isThere {
			isThere, err = exists(staging)
		}
		if err != nil {
			return err
		}
		if !isThere {
			return fmt.Errorf("restore %s: %w", want, errNoData)
		}
		return nil
	}
	isThere, err := exists(etcdDir(dir))
	if err != nil {
		return err
	}
	if isThere && (want == controlplane.Recovery || controlplane.MoveOf(want) != "") {
		return errNotLost
	}
	if isThere {
		if err := os.Rename(etcdDir(dir), filepath.Join(staging, replacedName)); err != nil {
			return err
		}
	}
	if err := os.Rename(etcdDir(staging), etcdDir(dir)); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(staging), atomicfile.SyncDir(dir))
}

// takeKeys moves the keys that wait beside restored data into the directory of a plane that has none: it was lost with
// the machine on which it ran, and its credentials must go on. A plane that has keys keeps them.
func takeKeys(dir, staging string) error {
	staged, pki := filepath.Join(staging, controlplane.StagedKeys), filepath.Join(dir, "pki")
	if isStaged, err := exists(staged); err != nil || !isStaged {
		return err
	}
	if hasKeys, err := exists(pki); err != nil || hasKeys {
		return err
	}
	if err := os.Rename(staged, pki); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(staging), atomicfile.SyncDir(dir))
}

// addPast returns the list of a plane's earlier restores, the last first, with those that came with restored data, and
// without any twice. It has maxPastData entries at most.
func addPast(past []string, staging string) ([]string, error) {
	path := filepath.Join(staging, controlplane.StagedPast)
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return past[:min(len(past), maxPastData)], nil
	}
	if err != nil {
		return nil, err
	}
	var more []string
	if err := json.Unmarshal(content, &more); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, order := range more {
		if !slices.Contains(past, order) {
			past = append(past, order)
		}
	}
	return past[:min(len(past), maxPastData)], nil
}

// returnData puts data back that an interrupted replaceData has moved away.
func returnData(dir, state string) error {
	isThere, err := exists(etcdDir(dir))
	if err != nil || isThere {
		return err
	}
	moved, err := filepath.Glob(filepath.Join(state, restoredPrefix+"*", replacedName))
	if err != nil || len(moved) == 0 {
		return err
	}
	if len(moved) > 1 {
		return fmt.Errorf("%w: it may be any of %v", errNoData, moved)
	}
	if err := os.Rename(moved[0], etcdDir(dir)); err != nil {
		return err
	}
	return errors.Join(atomicfile.SyncDir(filepath.Dir(moved[0])), atomicfile.SyncDir(dir))
}

// isBetweenData reports whether replaceData has moved the data of a plane away. Restored data that only waits is not
// the plane's.
func isBetweenData(state string) bool {
	found, _ := filepath.Glob(filepath.Join(state, restoredPrefix+"*", replacedName))
	return len(found) > 0
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
