package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/filelock"
)

// State is how far a node's supervisor has come.
type State string

// The states of a node. A node whose supervisor was killed has the last state that it wrote; Running
// reports whether it runs.
const (
	Starting State = "Starting" // the namespaces and programs are being made
	Up       State = "Up"       // all programs run; whether the Node is Ready, the API server knows
	Stopping State = "Stopping"
	Stopped  State = "Stopped" // by a request
	Failed   State = "Failed"  // Status.Message says why; the supervisor has ended
)

// Status is the content of the file status.json in a node's home. The supervisor replaces it at each change.
type Status struct {
	State   State     `json:"state"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
	// Supervisor is the process id of `atoll node run`.
	Supervisor int `json:"supervisor"`
	// Init is the process id, on this machine, of the first process of the node's process namespace.
	Init int `json:"init,omitempty"`
	// FirstID is the user and group id, on this machine, of the node's root; the ids after it are those of the node's
	// other users. 0: the node has no user namespace, and its root is root of this machine.
	FirstID uint32 `json:"firstID,omitempty"`
	// Disk is the size of the node's disk, in bytes. 0: the node has none, and its pods, images and logs can fill the
	// file system of its home.
	Disk int64 `json:"disk,omitempty"`
	// Address is the node's address on its bridge.
	Address  string             `json:"address,omitempty"`
	Programs map[string]Program `json:"programs,omitempty"`
}

// Program is one program that the supervisor keeps running: containerd, or atoll-node, which is kubelet, kube-proxy and
// the agent of konnectivity.
type Program struct {
	PID      int    `json:"pid,omitempty"` // on this machine; 0: it does not run now
	Restarts int    `json:"restarts"`
	LastExit string `json:"lastExit,omitempty"` // why it ended last
}

// StatusFile returns the path of the status in a node's home.
func StatusFile(home string) string { return filepath.Join(home, "status.json") }

// joinedFile returns the path of a mark in a node's home that all programs have run once: kubelet has a certificate.
func joinedFile(home string) string { return filepath.Join(home, "joined") }

// RecordJoined records that kubelet of the node in a home has got its client certificate.
func RecordJoined(home string) error { return os.WriteFile(joinedFile(home), nil, 0o600) }

// HasJoined reports whether kubelet of the node in a home has got its client certificate.
func HasJoined(home string) bool {
	for _, path := range []string{joinedFile(home),
		filepath.Join(home, "kubelet", "pki", "kubelet-client-current.pem")} { // of a node without a disk of its own
		if _, err := os.Lstat(path); err == nil {
			return true
		}
	}
	return false
}

// ReadStatus reads the status of the node in a home. The error is fs.ErrNotExist when no supervisor has run there.
func ReadStatus(home string) (Status, error) {
	var s Status
	data, err := os.ReadFile(StatusFile(home))
	if err != nil {
		return s, fmt.Errorf("reading the status of a node: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", StatusFile(home), err)
	}
	return s, nil
}

// Running reports whether a supervisor runs the node of a home now.
func Running(home string) (bool, error) {
	f, err := os.Open(lockFile(home))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("finding the supervisor of a node: %w", err)
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return true, nil
	}
	return false, err // closing releases the lock
}

// Lock makes the calling process the supervisor of the node of a home, until unlock is called or the process ends.
func Lock(home string) (unlock func(), err error) {
	deadline := time.Now().Add(lockPatience)
	for {
		unlock, err := filelock.Try(lockFile(home))
		switch {
		case err == nil:
			return unlock, nil
		case !errors.Is(err, filelock.ErrLocked):
			return nil, fmt.Errorf("locking the home of a node: %w", err)
		case time.Now().After(deadline):
			return nil, fmt.Errorf("%s: another supervisor runs this node: %w", home, err)
		}
		time.Sleep(lockPatience / 50)
	}
}

// lockPatience is how long Lock tries: each call of Running has the lock for a moment.
const lockPatience = 500 * time.Millisecond

func lockFile(home string) string { return filepath.Join(home, "lock") }
