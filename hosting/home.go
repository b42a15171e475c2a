package hosting

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/loop"
	"atoll.dev/internal/logfile"
)

// home is hosting's data directory:
//
//	hosting.lock                    locked by the hosting that runs
//	planes/NAMESPACE/NAME/          a plane's data directory, of atoll-kube
//	planes/NAMESPACE/NAME/hosting.json   record
//	planes/NAMESPACE/NAME/plane.log, plane.log.1
type home struct{ dir string }

func (h home) plane(key loop.Key) string {
	return filepath.Join(h.dir, "planes", key.Namespace, key.Name)
}

func logPath(dir string) string { return filepath.Join(dir, "plane.log") }

// errLocked is the error of a second hosting in the same directory.
var errLocked = errors.New("another hosting uses the data directory")

// lock makes the directory and keeps every other hosting out until release;
// the kernel releases it with the process.
func (h home) lock() (release func(), err error) {
	if err := os.MkdirAll(filepath.Join(h.dir, "planes"), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(h.dir, "hosting.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", errLocked, h.dir)
		}
		return nil, err
	}
	return func() { f.Close() }, nil
}

// planes lists the planes that have a directory.
func (h home) planes() []loop.Key {
	paths, _ := filepath.Glob(filepath.Join(h.dir, "planes", "*", "*"))
	keys := make([]loop.Key, 0, len(paths))
	for _, p := range paths {
		keys = append(keys, loop.Key{Namespace: filepath.Base(filepath.Dir(p)), Name: filepath.Base(p)})
	}
	return keys
}

// holds says whether there is data of a plane, as atoll-kube keeps it.
func (h home) holds(key loop.Key) bool {
	_, err := os.Stat(filepath.Join(h.plane(key), "etcd"))
	return !errors.Is(err, fs.ErrNotExist)
}

// remove deletes a plane's directory; its process must have ended.
func (h home) remove(key loop.Key) error {
	dir := h.plane(key)
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Remove(filepath.Dir(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) &&
		!errors.Is(err, unix.ENOTEMPTY) {
		return err
	}
	return nil
}

// record is what hosting keeps beside a plane's data. It is written before a
// plane is started, so it tells what a process that is found runs.
type record struct {
	Port        int      `json:"port"`
	ServiceCIDR string   `json:"service_cidr,omitempty"` // fixed by the first start
	Release     string   `json:"release,omitempty"`      // of the last start
	Hosts       []string `json:"hosts,omitempty"`        // in the serving certificate, of the last start
	Born        bool     `json:"born,omitempty"`         // has been ready once
}

func recordPath(dir string) string { return filepath.Join(dir, "hosting.json") }

func readRecord(dir string) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, fmt.Errorf("%s: %w", recordPath(dir), err)
	}
	return r, nil
}

func (r record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	tmp := recordPath(dir) + ".tmp"
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // a record that says less than the data would be worse than none
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp, recordPath(dir))
}

// ports gives out loopback ports, each to one plane.
type ports struct {
	first, last int

	mu    sync.Mutex
	taken map[int]loop.Key
}

// The range lies above a region's own ports and below those that the kernel
// gives to outgoing connections.
const (
	firstPort = 30000
	lastPort  = 32767
)

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// claim gives a plane the port that it had, whoever listens there now: it may
// be the plane itself. false when another plane has it.
func (p *ports) claim(key loop.Key, port int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if holder, ok := p.taken[port]; ok && holder != key {
		return false
	}
	p.taken[port] = key
	return true
}

// choose gives a plane a port on which nobody listens, instead of any that it
// has. The search begins where the name says, so that many hostings on one
// machine rarely meet.
func (p *ports) choose(key loop.Key) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var before int
	for port, holder := range p.taken {
		if holder == key {
			before = port
			delete(p.taken, port)
		}
	}
	h := fnv.New32a()
	h.Write([]byte(key.String()))
	n := p.last - p.first + 1
	for i := range n {
		port := p.first + (int(h.Sum32()%uint32(n))+i)%n
		if _, taken := p.taken[port]; taken || port == before || !free(port) {
			continue
		}
		p.taken[port] = key
		return port, nil
	}
	return 0, fmt.Errorf("no port from %d to %d is free", p.first, p.last)
}

func (p *ports) release(key loop.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for port, holder := range p.taken {
		if holder == key {
			delete(p.taken, port)
		}
	}
}

func free(port int) bool {
	l, err := net.Listen("tcp", address(port))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// logLimit is the size at which a plane's log is set aside; one old log stays.
const logLimit = 4 << 20

func boundLog(path string) error { return logfile.Bound(path, logLimit, 1) }
