package rollout

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"atoll.dev/gitops"
)

// ErrHandEdits: a revert would change a value that somebody has set since the rollout, or carry such a change with it.
var ErrHandEdits = errors.New("nothing was reverted. Undo these edits, or `atoll rollout revert FILE --force` " +
	"overwrites them")

// HandEdits says how a revert treats hand edits: values that somebody has set since the rollout changed them, regions
// and management clusters that somebody has removed, and rendered files that somebody has edited.
type HandEdits string

// The treatments of hand edits.
const (
	// RefuseHandEdits: the revert changes nothing, and its error names each of them with file and line.
	RefuseHandEdits HandEdits = "refuse"
	// KeepHandEdits: the values that somebody has set stay. The record names them. A rollout that reverts by itself does
	// this, since nobody is there to decide, and the other regions must not wait.
	KeepHandEdits HandEdits = "keep"
	// OverwriteHandEdits: each value is the earlier one again. What was removed stays removed; the record names it.
	OverwriteHandEdits HandEdits = "overwrite"
)

// Restore undoes the change in the files of the targets. kept names the hand edits that it leaves. With RefuseHandEdits
// the error joins all hand edits, and Restore undoes nothing.
func (t Tree) Restore(r Rollout, targets []Target, undo Undo, handEdits HandEdits) (tree Tree, files gitops.Files,
	kept []string, err error) {
	var declared []Target
	var found []error // hand edits
	for _, target := range targets {
		switch at, err := t.removalText(r, target); {
		case err != nil:
			return Tree{}, nil, nil, err
		case at != "":
			kept = append(kept, fmt.Sprintf("%s: %s", target, at))
			found = append(found, fmt.Errorf("%s:1: %s was removed", path.Join(t.Dir, target.regionFile(r)), target))
		default:
			declared = append(declared, target)
		}
	}
	tree, files, err = t.editFiles(r, declared, func(target Target, file string, data []byte) ([]byte, error) {
		edited, err := handEditsOf(r, target, file, data, undo[target])
		if err != nil {
			return nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(edited)) {
			found = append(found, edited[key])
		}
		restored := undo[target]
		if handEdits == KeepHandEdits {
			for _, key := range slices.Sorted(maps.Keys(edited)) {
				kept = append(kept, fmt.Sprintf("%s: %s", target, key))
			}
			restored = slices.DeleteFunc(slices.Clone(restored), func(e gitops.Edit) bool {
				return setsAny(target, e.Path, edited)
			})
		}
		after, _, err := gitops.EditFile(file, data, restored)
		return after, err
	})
	if err == nil && handEdits == RefuseHandEdits && len(found) > 0 {
		return Tree{}, nil, nil, errors.Join(append(found, ErrHandEdits)...)
	}
	slices.Sort(kept)
	return tree, files, kept, err
}

// removalText returns how somebody has removed a target from the configuration, and "" when it is declared.
func (t Tree) removalText(r Rollout, target Target) (string, error) {
	file := path.Join(t.Dir, target.regionFile(r))
	data, err := fs.ReadFile(t.Files, target.regionFile(r))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("its file %s was removed", file), nil
	}
	if err != nil || target.Cluster() == "" {
		return "", err
	}
	document, err := gitops.ParseDocument(file, data)
	if err == nil && document.Value([]string{"managementClusters", target.Cluster()}).IsMissing() {
		return fmt.Sprintf("%s declares it no more", file), nil
	}
	return "", err
}

// handEditsOf returns the keys of the rollout whose value in a file is neither that of the rollout nor the earlier one,
// each with an error that has its file and line.
func handEditsOf(r Rollout, target Target, file string, data []byte, undo []gitops.Edit) (map[string]error, error) {
	restored, _, err := gitops.EditFile(file, data, undo)
	if err != nil {
		return nil, err
	}
	now, err := gitops.ParseDocument(file, data)
	if err != nil {
		return nil, err
	}
	earlier, err := gitops.ParseDocument(file, restored)
	if err != nil {
		return nil, err
	}
	edited := map[string]error{}
	for key, value := range r.Change.Edits() {
		set, err := gitops.ValueOf(value)
		if err != nil {
			return nil, err
		}
		have, before := now.Value(target.settingPath(key)), earlier.Value(target.settingPath(key))
		if !have.Equals(set) && !have.Equals(before) {
			edited[key] = fmt.Errorf("%s: %s of %s is %s; the rollout had set %s, and before that it was %s",
				have.At, key, target, have, set, before)
		}
	}
	return edited, nil
}

// setsAny reports whether an edit sets one of some keys, or a mapping around it.
func setsAny[T any](target Target, at []string, keys map[string]T) bool {
	for key := range keys {
		path := target.settingPath(key)
		if len(at) <= len(path) && slices.Equal(at, path[:len(at)]) {
			return true
		}
	}
	return false
}
