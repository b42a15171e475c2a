package local

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/filelock"
)

// Ports lie below the kernel's range for outgoing connections, so that no
// client's socket can sit on one of ours while a process restarts.
const (
	firstPort = 20000
	lastPort  = 29999
)

// assignPorts gives every name a port that is free and assigned to no other home of this user. It
// keeps the ports that were assigned before.
func (h Home) assignPorts(ports map[string]int, names []string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return ports[n] != 0 })
	if len(missing) == 0 {
		return nil
	}
	assigned := map[string]string{} // port -> home, of all homes of this user
	registry, unlock, err := openRegistry()
	if err == nil {
		defer unlock()
		if json.NewDecoder(registry).Decode(&assigned) != nil {
			assigned = map[string]string{} // new, or damaged
		}
	}
	for port, home := range assigned {
		if _, err := os.Stat(home); errors.Is(err, fs.ErrNotExist) {
			delete(assigned, port)
		}
	}
	for _, name := range missing {
		port, err := freePort(assigned)
		if err != nil {
			return err
		}
		ports[name] = port
		assigned[strconv.Itoa(port)] = h.Dir
	}
	if registry == nil {
		return nil
	}
	data, err := json.Marshal(assigned)
	if err == nil {
		err = registry.Truncate(0)
	}
	if err == nil {
		_, err = registry.WriteAt(data, 0)
	}
	if err != nil {
		return fmt.Errorf("choosing ports: %s: %w", registry.Name(), err)
	}
	return nil
}

// openRegistry opens and locks the file that records the ports of all homes of this user, so that
// two homes that start at the same time do not choose the same port. Without the file, assignPorts
// still chooses a port that is free.
func openRegistry() (registry *os.File, unlock func(), err error) {
	registry, err = os.OpenFile(filepath.Join(os.TempDir(), fmt.Sprintf("atoll-ports-%d.json", os.Getuid())),
		os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		unlock, err = filelock.WaitFile(registry)
	}
	if err != nil {
		return nil, nil, err
	}
	return registry, unlock, nil
}

func freePort(assigned map[string]string) (int, error) {
	start := rand.IntN(lastPort - firstPort + 1)
	for i := range lastPort - firstPort + 1 {
		port := firstPort + (start+i)%(lastPort-firstPort+1)
		if _, isTaken := assigned[strconv.Itoa(port)]; isTaken {
			continue
		}
		if isPortFree(port, oneProcess) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no free port between %d and %d", firstPort, lastPort)
}

// portUse says which processes may listen on a port.
type portUse uint8

const (
	oneProcess  portUse = iota
	allReplicas         // processes of this user that share it
)

// isPortFree reports whether a process can listen on a port. It only binds a port that replicas share: the kernel would
// give it connections to the replicas that listen there.
func isPortFree(port int, use portUse) bool {
	if use == allReplicas {
		return canShare(port)
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	l.Close()
	return true
}

// canShare reports whether a process can bind a port that processes of this user share.
func canShare(port int) bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	err = errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
	return err == nil && unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}) == nil
}

// firstTakenPort returns the first port of a process on which it cannot listen, 0 when it can on all.
func (s Spec) firstTakenPort(isFree func(int, portUse) bool) int {
	for _, port := range s.Ports {
		if !isFree(port, oneProcess) {
			return port
		}
	}
	for _, port := range s.SharedPorts {
		if !isFree(port, allReplicas) {
			return port
		}
	}
	return 0
}

// awaitPortFree waits up to two seconds until a port is free: a killed process holds its ports
// until the kernel has freed its memory. It returns false when the port stays taken or ctx ends.
func awaitPortFree(ctx context.Context, port int, use portUse) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ticker := time.NewTicker(readyPoll)
	defer ticker.Stop()
	for !isPortFree(port, use) {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// portHolder describes the process that listens on a loopback port, as far as
// this user may see it.
func portHolder(port int) string {
	inode := listeningInode(port)
	if inode == "" {
		return "another process"
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err == nil && target == "socket:["+inode+"]" {
			pid := strings.Split(fd, "/")[2]
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			return fmt.Sprintf("%s (pid %s)", strings.TrimSpace(string(comm)), pid)
		}
	}
	return "a process of another user"
}

// listeningInode finds the socket in /proc/net/tcp{,6}: fields are number,
// local address in hex, remote address, state (0A is LISTEN), ..., inode.
func listeningInode(port int) string {
	want := strings.ToUpper(hex.EncodeToString([]byte{byte(port >> 8), byte(port)}))
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		defer f.Close()
		for sc := bufio.NewScanner(f); sc.Scan(); {
			fields := strings.Fields(sc.Text())
			if len(fields) > 9 && fields[3] == "0A" && strings.HasSuffix(fields[1], ":"+want) {
				return fields[9]
			}
		}
	}
	return ""
}
