package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
	"atoll.dev/internal/logfile"
)

// home is the data directory of all planes:
//
//	hosting.lock                         locked by the runtime that is open
//	layout                               see migrate
//	planes/NAMESPACE/NAME/               a plane's data directory, of atoll-kube: the plane writes there
//	planes/_warm/SLOT/                   the same, of a plane that is or was warm
//	state/NAMESPACE/NAME/                what the runtime keeps about a plane: no plane writes there
//	state/NAMESPACE/NAME/hosting.json    record
//	state/NAMESPACE/NAME/slot            SLOT, of a plane that was warm: see slotOf
//	state/NAMESPACE/NAME/plane.log, plane.log.1
//	state/NAMESPACE/NAME/restored-ID/    see replaceData and copyData
//
// The runtime has more rights than a plane. So it opens what is below planes with package beneath only, and believes
// nothing that it reads there.
type home struct{ dir string }

const (
	planesName = "planes"
	stateName  = "state"
)

// plane returns the data directory of a plane. Of a plane whose slot cannot be read, it returns a directory that does
// not exist: newRunner returns the error, and no plane starts.
func (h home) plane(id controlplane.ID) string {
	slot, _ := h.slotOf(id)
	return h.slotDir(slot)
}

func (h home) state(id controlplane.ID) string {
	return filepath.Join(h.dir, stateName, id.Namespace, id.Name)
}

func logPath(state string) string { return filepath.Join(state, "plane.log") }

// ErrLocked is the error of a second runtime in the same directory.
var ErrLocked = errors.New("another hosting uses the data directory")

// lock makes the directory and locks it until unlock is called or this process
// ends.
func (h home) lock() (unlock func(), err error) {
	for _, name := range []string{planesName, stateName} {
		if err := os.MkdirAll(filepath.Join(h.dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	unlock, err = filelock.Try(filepath.Join(h.dir, "hosting.lock"))
	if errors.Is(err, filelock.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", ErrLocked, h.dir)
	}
	return unlock, err
}

// planes lists the planes that have a directory of either kind, without warm ones.
func (h home) planes() []controlplane.ID {
	paths, _ := filepath.Glob(filepath.Join(h.dir, planesName, "*", "*"))
	more, _ := filepath.Glob(filepath.Join(h.dir, stateName, "*", "*"))
	ids := make([]controlplane.ID, 0, len(paths))
	seen := map[controlplane.ID]bool{}
	for _, p := range slices.Concat(paths, more) {
		id := controlplane.ID{Namespace: filepath.Base(filepath.Dir(p)), Name: filepath.Base(p)}
		if !seen[id] && !id.IsWarm() {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// hasData reports whether the plane's directory has data of etcd, as atoll-kube
// stores it.
func (h home) hasData(id controlplane.ID) bool {
	_, err := os.Lstat(etcdDir(h.plane(id)))
	return !errors.Is(err, fs.ErrNotExist) || isBetweenData(h.state(id))
}

// remove deletes a plane's directories; its process must have ended. The state goes last: as long as it is there, the
// plane is listed.
func (h home) remove(id controlplane.ID) error {
	slot, err := h.slotOf(id)
	if err != nil {
		return err
	}
	for _, dir := range []string{h.slotDir(slot), h.state(id)} {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		if filepath.Base(filepath.Dir(dir)) == controlplane.WarmNamespace {
			continue // giveState needs that directory at the same time
		}
		err := os.Remove(filepath.Dir(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return nil
}

// record is the content of hosting.json. The runtime writes it before each start, so it
// describes every running process.
type record struct {
	Port        int                  `json:"port"`
	ServiceCIDR string               `json:"service_cidr,omitempty"` // fixed by the first start
	Release     controlplane.Version `json:"release,omitempty"`      // of the last start
	Hosts       []string             `json:"hosts,omitempty"`        // in the serving certificate, of the last start
	WasReady    bool                 `json:"born,omitempty"`         // has been ready once
	Data        string               `json:"data,omitempty"`         // restored data, of the last start
	PastData    []string             `json:"past_data,omitempty"`    // earlier restored data, the last first
	User        int                  `json:"user,omitempty"`         // id of the plane's own user; 0: that of hosting

	Served    controlplane.Version   `json:"served,omitempty"`   // release with which the plane was ready last
	Emulated  string                 `json:"emulated,omitempty"` // minor version, of the last start
	Copy      string                 `json:"copy,omitempty"`     // copy of the data of Served
	Rotations controlplane.Rotations `json:"rotations,omitzero"` // of keys, of the last start

	Size        cluster.Size `json:"size,omitempty"`         // whose limits hold; "" before the first order of one
	Wanted      cluster.Size `json:"wanted,omitempty"`       // that the plane's use needs
	OutOfMemory time.Time    `json:"out_of_memory,omitzero"` // when the kernel ended the plane last for want of memory
}

func (r record) lastStart() controlplane.LastStart {
	if r.isUnnamed() { // it was not ready as the cluster's plane
		return controlplane.LastStart{Release: r.Release, ServiceCIDR: r.ServiceCIDR}
	}
	return controlplane.LastStart{Release: r.Release, ServerNames: r.Hosts, ServiceCIDR: r.ServiceCIDR,
		WasReady: r.WasReady, Data: r.Data, PastData: r.PastData, Served: r.Served, EmulatedVersion: r.Emulated, Copy: r.Copy,
		Rotations: r.Rotations}
}

// follows reports whether the process of the last start runs as spec requires.
func (r record) follows(spec controlplane.Spec) bool {
	return r.Release == spec.Release && r.Data == spec.Data && r.Emulated == spec.EmulatedVersion &&
		r.Rotations == spec.Rotations && slices.Equal(r.Hosts, spec.ServerNames)
}

// isUnnamed reports whether the record has the wildcard name of a warm plane: the record of a cluster's plane has it
// from its adoption until nameRecord.
func (r record) isUnnamed() bool { return slices.ContainsFunc(r.Hosts, isWildcard) }

// backend is HOST:PORT of the API server, "" before a port was chosen.
func (r record) backend() string {
	if r.Port == 0 {
		return ""
	}
	return address(r.Port)
}

func recordPath(state string) string { return filepath.Join(state, "hosting.json") }

// readRecord returns an empty record when there is no file.
func readRecord(state string) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(state))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", recordPath(state), err)
	}
	if r.WasReady && r.Served == "" { // written before records had it
		r.Served = r.Release
	}
	return r, nil
}

// write replaces the file. It is on disk when write returns: an old record
// beside newer data could start the data with an older release.
func (r record) write(state string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(state, 0o700); err != nil {
		return err
	}
	return atomicfile.Rewrite(recordPath(state), data, 0o600)
}

// logLimit is the size at which a plane's log is set aside; one old log stays.
const logLimit = 4 << 20

func boundLog(path string) error { return logfile.LimitSize(path, logLimit, 1) }
