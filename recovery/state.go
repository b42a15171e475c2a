package recovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/internal/atomicfile"
)

// state is the content that a rebuild keeps in its StateFile from the beginning of its first run until it is complete.
type state struct {
	Begun time.Time `json:"begun"` // of the first run
	// Reconciled has the ids of the resources that were reconciled at the beginning of a run. Those of a later run are
	// added: they did not exist before, or an earlier run restored them.
	Reconciled []string `json:"reconciled"`
}

// loadState reads the state of the earlier runs. Without one it returns a new state that begins at begun.
func (r *rebuild) loadState(begun time.Time) (state, error) {
	st := state{Begun: begun}
	if r.StateFile == "" {
		return st, nil
	}
	text, err := os.ReadFile(r.StateFile)
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &st)
	}
	if err != nil {
		return st, fmt.Errorf("reading the state of an earlier rebuild; delete %s to compare with the present state: %w",
			r.StateFile, err)
	}
	if r.Continued != nil {
		r.Continued(st.Begun)
	}
	return st, nil
}

// saveState replaces the StateFile.
func (r *rebuild) saveState(st state) error {
	if r.StateFile == "" {
		return nil
	}
	text, err := json.Marshal(st)
	if err == nil {
		err = atomicfile.Write(r.StateFile, text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("saving the state of the rebuild: %w", err)
	}
	return nil
}

// removeState removes the StateFile: the rebuild is complete.
func (r *rebuild) removeState() error {
	if r.StateFile == "" {
		return nil
	}
	if err := os.Remove(r.StateFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the state of a complete rebuild: %w", err)
	}
	return nil
}

// merge joins the state with before, the resources at the beginning of this run, and changes both. It marks in
// before as reconciled what was reconciled at the beginning of an earlier run, and adds to the state what is
// reconciled now. It does not change the times of reports in before: a later run, too, waits until each adapter has
// reported again.
func (st *state) merge(before map[string]clm.Resource) {
	reconciled := map[string]bool{}
	for _, id := range st.Reconciled {
		resource, exists := before[id]
		if !exists {
			continue // deleted since
		}
		reconciled[id] = true
		conditions := slices.Clone(resource.Status.Conditions)
		for i := range conditions {
			if conditions[i].Type == "Reconciled" {
				conditions[i].Status = "True"
			}
		}
		resource.Status.Conditions = conditions
		before[id] = resource
	}
	for id, resource := range before {
		if cond := clmclient.Reconciled(resource); cond != nil && cond.Status == "True" {
			reconciled[id] = true
		}
	}
	st.Reconciled = slices.Sorted(maps.Keys(reconciled))
}
