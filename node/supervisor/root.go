package supervisor

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"atoll.dev/node"
)

// sharedDirs are the directories of the machine that a node sees, read-only: its programs and libraries.
var sharedDirs = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
	"/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl", "/etc/pki", "/etc/ca-certificates"}

// devices are the machine's devices that every node has.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty", "kmsg"}

// persistentDirs maps directories of a node's home to their paths in the node's root; they outlive the node.
var persistentDirs = map[string]string{
	"kubelet": "/var/lib/kubelet", "containerd": "/var/lib/containerd", "log": "/var/log",
}

// hiddenTunables are settings of the whole machine that kubelet would change unless they have these values.
// hideTunables mounts files with these values over them, so that kubelet leaves the machine's settings as they are.
var hiddenTunables = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// enterRoot makes the node's root file system of the order and its mounts, and makes it the root of the caller's mount
// namespace. The caller is in the cgroup namespace of the node.
func enterRoot(o order, mounts []*os.File) error {
	c := o.Config
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	const root = "/tmp" // in this mount namespace only
	if err := unix.Mount("tmpfs", root, "tmpfs", unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mounting %s: %w", root, err)
	}
	m := mounter{root: root, machine: map[string]*os.File{}}
	for i, path := range o.Mounts {
		m.machine[path] = mounts[i]
	}
	for _, dir := range []string{"/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/var/lib/cni", "/root", programsDir} {
		m.makeDir(dir)
	}
	for _, path := range sharedDirs {
		m.bindReadOnly(path)
	}
	m.attach(c.Programs, kubernetes)
	m.attach(nodeDir(c), programsDir+"/node")
	for name, path := range persistentDirs {
		m.attach(filepath.Join(c.Home, name), path)
	}
	m.mount("tmpfs", "/run", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=755")
	m.mount("tmpfs", "/tmp", "tmpfs", unix.MS_NODEV|unix.MS_NOSUID, "mode=1777")
	m.mount("proc", "/proc", "proc", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOEXEC, "")
	m.mountSys(o)
	m.mountDev(o)
	m.link("/run", "/var/run")
	m.hideTunables()
	if m.err != nil {
		return fmt.Errorf("making the root of the node: %w", m.err)
	}
	return pivot(root)
}

// pivot makes root the root of the mount namespace and detaches the old one.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("changing the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detaching the machine's root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	// Volumes with mount propagation need shared mounts. The group of peers is within the node.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

// mounter makes mounts below a directory. After the first error it does nothing more.
type mounter struct {
	root    string
	machine map[string]*os.File // mounts of the machine's files, by path
	err     error
}

func (m *mounter) path(inside string) string { return filepath.Join(m.root, inside) }

func (m *mounter) setError(inside string, err error) {
	if m.err == nil && err != nil {
		m.err = fmt.Errorf("%s: %w", inside, err)
	}
}

func (m *mounter) makeDir(inside string) {
	if m.err == nil {
		m.setError(inside, os.MkdirAll(m.path(inside), 0o755))
	}
}

func (m *mounter) link(target, inside string) {
	if m.err == nil {
		m.setError(inside, os.Symlink(target, m.path(inside)))
	}
}

func (m *mounter) write(inside, text string) {
	if m.err == nil {
		m.makeDir(filepath.Dir(inside))
		m.setError(inside, os.WriteFile(m.path(inside), []byte(text), 0o600))
	}
}

func (m *mounter) mount(source, inside, kind string, flags uintptr, data string) {
	if m.err == nil {
		m.makeDir(inside)
		m.setError(inside, unix.Mount(source, m.path(inside), kind, flags, data))
	}
}

// attach makes a file or directory of the machine visible whose mount came with the order.
func (m *mounter) attach(from, inside string) {
	if m.err != nil {
		return
	}
	mount, ok := m.machine[from]
	if !ok {
		m.setError(inside, fmt.Errorf("the supervisor has sent no mount of %s", from))
		return
	}
	info, err := mount.Stat()
	m.setError(inside, err)
	m.makeTarget(inside, info)
	if m.err == nil {
		m.setError(inside, attach(mount, m.path(inside)))
	}
}

// makeTarget makes the directory or file over which something with info is mounted.
func (m *mounter) makeTarget(inside string, info fs.FileInfo) {
	if m.err != nil {
		return
	}
	if info.IsDir() {
		m.makeDir(inside)
	} else if _, err := os.Lstat(m.path(inside)); errors.Is(err, fs.ErrNotExist) {
		m.write(inside, "")
	}
}

// bind makes a file or directory visible that the caller can reach by its path.
func (m *mounter) bind(from, inside string, flags uintptr) {
	if m.err != nil {
		return
	}
	info, err := os.Stat(from)
	if err != nil {
		m.setError(inside, err)
		return
	}
	m.makeTarget(inside, info)
	m.setError(inside, unix.Mount(from, m.path(inside), "", unix.MS_BIND, ""))
	if flags != 0 {
		m.setError(inside, unix.Mount("", m.path(inside), "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""))
	}
}

// bindReadOnly makes a path of the machine visible, read-only: a link as a link, and nothing when the path is missing.
func (m *mounter) bindReadOnly(path string) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		m.setError(path, err)
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(path)
		m.setError(path, err)
		m.makeDir(filepath.Dir(path))
		m.link(target, path)
	default:
		m.attach(path, path)
	}
}

// mountSys mounts sysfs, read-only because it has settings of the whole machine, and the cgroup hierarchies. In the
// node's cgroup namespace their roots are the node's cgroup.
//
// In a user namespace only the mount is read-only, not the file system: else the kernel refuses a privileged pod, which
// mounts a writable one. The owner of the files is the machine's root, so that the node's root cannot write to them.
func (m *mounter) mountSys(o order) {
	const flags = unix.MS_NODEV | unix.MS_NOSUID | unix.MS_NOEXEC
	cgroups := o.Cgroups
	if o.UserNamespace {
		m.mount("sysfs", "/sys", "sysfs", flags, "")
		m.mount("", "/sys", "", unix.MS_BIND|unix.MS_REMOUNT|flags|unix.MS_RDONLY, "")
	} else {
		m.mount("sysfs", "/sys", "sysfs", flags|unix.MS_RDONLY, "")
	}
	if isUnified(cgroups) {
		m.mount("cgroup2", "/sys/fs/cgroup", "cgroup2", flags, "")
		return
	}
	m.mount("tmpfs", "/sys/fs/cgroup", "tmpfs", flags, "mode=755")
	for _, h := range cgroups {
		if len(h.Options) == 0 {
			m.mount("cgroup2", h.Path, "cgroup2", flags, "")
			continue
		}
		m.mount("cgroup", h.Path, "cgroup", flags, strings.Join(h.Options, ","))
		for _, controller := range h.Options {
			if name := filepath.Base(h.Path); len(h.Options) > 1 && name != controller {
				m.link(name, filepath.Join(filepath.Dir(h.Path), controller))
			}
		}
	}
}

// mountDev makes /dev. A node in a user namespace does not see the machine's kernel log: kubelet does without it, and
// the log is about the whole machine.
func (m *mounter) mountDev(o order) {
	m.mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755")
	for _, name := range devices {
		if o.UserNamespace && name == "kmsg" {
			continue
		}
		if _, err := os.Stat("/dev/" + name); err == nil {
			m.bind("/dev/"+name, "/dev/"+name, 0)
		}
	}
	m.mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5")
	m.mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
	m.link("pts/ptmx", "/dev/ptmx")
	m.link("/proc/self/fd", "/dev/fd")
	for i, name := range []string{"stdin", "stdout", "stderr"} {
		m.link(fmt.Sprintf("/proc/self/fd/%d", i), "/dev/"+name)
	}
}

// hideTunables hides the machine's settings that kubelet would change, and makes the others below /proc/sys read-only,
// except those of the node's own network.
func (m *mounter) hideTunables() {
	m.bind(m.path("/proc/sys"), "/proc/sys", unix.MS_RDONLY)
	m.bind(m.path("/proc/sys/net"), "/proc/sys/net", 0)
	if m.err == nil { // the mount is a copy of one that is read-only
		m.setError("/proc/sys/net", unix.Mount("", m.path("/proc/sys/net"), "", unix.MS_BIND|unix.MS_REMOUNT, ""))
	}
	for _, key := range slices.Sorted(maps.Keys(hiddenTunables)) {
		if _, err := os.Stat("/proc/sys/" + key); err != nil {
			continue // this kernel does not have it
		}
		file := "/run/tunables/" + strings.ReplaceAll(key, "/", ".")
		m.write(file, hiddenTunables[key]+"\n")
		m.bind(m.path(file), "/proc/sys/"+key, 0)
	}
	if _, err := os.Stat("/proc/sysrq-trigger"); err == nil {
		m.bind("/dev/null", "/proc/sysrq-trigger", 0)
	}
}

// writeEtc writes the files below /etc that programs of a node expect, into the caller's root.
func writeEtc(c node.Config) error {
	local := []string{"127.0.0.1", "localhost", c.APIServer.ServerName}
	if mirror, err := url.Parse(c.Images.Mirror); err == nil && c.Images.Mirror != "" {
		if _, err := netip.ParseAddr(mirror.Hostname()); err != nil {
			local = append(local, mirror.Hostname())
		}
	}
	hosts := fmt.Sprintf("%s\n::1 localhost\n%s %s\n", strings.Join(local, " "), c.Network.IP(), c.Name)
	files := map[string]string{
		"/etc/hosts":         hosts,
		"/etc/hostname":      c.Name + "\n",
		"/etc/resolv.conf":   "",
		"/etc/nsswitch.conf": "hosts: files dns\n",
		"/etc/passwd":        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
		"/etc/group":         "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n",
		"/etc/machine-id":    fmt.Sprintf("%x", sha256.Sum256([]byte(c.Home+"/"+c.Name)))[:32] + "\n",
		"/etc/os-release":    osRelease(),
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// osRelease returns the machine's description of itself, which the Node object shows.
func osRelease() string {
	data, err := os.ReadFile("/usr/lib/os-release")
	if err != nil {
		return "PRETTY_NAME=Linux\n"
	}
	return string(data)
}
