package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/node"
)

// initEndTimeout is how long the supervisor waits for init after the message Stop. Init itself waits
// programEndTimeout for the programs.
const initEndTimeout = 2 * programEndTimeout

// supervisor runs one node. One goroutine at a time uses its status.
type supervisor struct {
	config  node.Config
	names   machineNames
	cgroups []hierarchy
	proxy   proxyMode
	// userNamespace reports whether the machine permits a user namespace for the node.
	userNamespace bool
	log           *slog.Logger
	status        node.Status
}

// Run runs a node until ctx ends, and then removes everything of it but its home. Programs that end are started again,
// and so is the whole node when its first process ends. The error says why the node cannot run.
func Run(ctx context.Context, c node.Config, log *slog.Logger) error {
	if err := os.MkdirAll(c.Home, 0o700); err != nil {
		return fmt.Errorf("node %s: %w", c.Name, err)
	}
	// Files that the node's root makes belong to the machine's root on the disk: a program of theirs with the set-user-ID
	// bit must be out of reach of the machine's other users.
	if err := os.Chmod(c.Home, 0o700); err != nil {
		return fmt.Errorf("node %s: %w", c.Name, err)
	}
	unlock, err := node.Lock(c.Home)
	if err != nil {
		return err
	}
	defer unlock()
	s := &supervisor{config: c, names: machineNamesOf(c), log: log,
		status: node.Status{Supervisor: os.Getpid(), Address: c.Network.IP().String(),
			Programs: map[string]node.Program{}}}
	if err := s.setState(node.Starting, ""); err != nil {
		return err
	}
	err = s.run(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("node %s: %w", c.Name, err), s.setState(node.Failed, err.Error()))
	}
	return s.setState(node.Stopped, "")
}

func (s *supervisor) run(ctx context.Context) (err error) {
	if missing := Preflight(s.config.Programs); len(missing) > 0 {
		return MissingError(missing)
	}
	if s.cgroups, err = readHierarchies(); err != nil {
		return err
	}
	s.proxy = chooseProxy()
	if err := TryUserNamespace(s.config.Home); err != nil {
		s.log.Warn("the node has no user namespace of its own: who is root in it can become root of this machine",
			"node", s.config.Name, "error", err)
	} else {
		s.userNamespace = true
	}
	if err := s.prepareDisk(); err != nil {
		return err
	}
	if err := s.cleanUp(); err != nil { // of an earlier supervisor that was killed
		return err
	}
	pause := firstPause
	for {
		from := time.Now()
		err := s.runOnce(ctx)
		err = errors.Join(err, s.cleanUp())
		if ctx.Err() != nil {
			return err
		}
		if err == nil {
			err = errors.New("the first process of the node has ended")
		}
		if time.Since(from) > pauseResetAfter {
			pause = firstPause
		}
		s.log.Error("the node has ended and is started again", "node", s.config.Name, "error", err, "after", pause)
		if err := s.setState(node.Starting, err.Error()); err != nil {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		pause = min(2*pause, maxPause)
	}
}

// prepareDisk makes the node's disk when its config has a size for it. A machine that cannot make one is no error: the
// node then keeps its files in its home.
func (s *supervisor) prepareDisk() (err error) {
	if s.config.Resources.Disk.IsZero() {
		return nil
	}
	s.status.Disk, err = makeDisk(s.config.Home, s.config.Resources.Disk.Value())
	if errors.Is(err, errNoDisk) {
		s.log.Warn("the node has no disk of its own: its pods can fill the disk of this machine", "node", s.config.Name,
			"error", err)
		return nil
	}
	return err
}

// runOnce starts the node's first process and returns after its end. When ctx ends, runOnce sends it Stop, and kills it
// after initEndTimeout.
func (s *supervisor) runOnce(ctx context.Context) error {
	own, initEnd, err := controlPair()
	if err != nil {
		return err
	}
	var following sync.WaitGroup
	defer following.Wait() // readMessages writes s.status as the caller does
	defer own.conn.Close()
	ids, err := s.prepareCgroup()
	if err != nil {
		initEnd.Close()
		return err
	}
	cmd := exec.Command("/proc/self/exe", "node", "init")
	cmd.ExtraFiles = []*os.File{initEnd} // controlFD
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = processAttributes(ids)
	err = cmd.Start()
	initEnd.Close()
	if err != nil {
		return fmt.Errorf("starting the first process of the node: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	defer func() {
		_ = cmd.Process.Kill()
		<-ended // the kernel has killed all processes of the node's process namespace
	}()
	if err := s.placeInit(cmd.Process.Pid); err != nil {
		return err
	}
	s.status.Init, s.status.FirstID = cmd.Process.Pid, uint32(ids)
	if err := s.sendOrder(own); err != nil {
		return fmt.Errorf("sending the order to the first process of the node: %w", err)
	}
	messages := make(chan error, 1)
	following.Go(func() { messages <- s.readMessages(ctx, own) })
	select {
	case err := <-messages:
		return err
	case <-ctx.Done():
	}
	if err := own.send(message{Stop: true}); err != nil {
		return nil // init has ended
	}
	select {
	case <-ended:
	case <-time.After(initEndTimeout):
		s.log.Warn("the node did not end in time and is killed", "node", s.config.Name, "after", initEndTimeout)
	}
	return nil
}

// sendOrder sends init its order and the mounts of this machine that the node sees.
func (s *supervisor) sendOrder(own *control) error {
	var users *os.File
	if s.status.FirstID != 0 {
		var err error
		if users, err = openUserNamespace(s.status.Init); err != nil {
			return err
		}
		defer users.Close()
	}
	mounts, err := machineMounts(s.config)
	if err != nil {
		return err
	}
	defer func() { closeFiles(mounts) }()
	keep := homeMounts
	if s.status.Disk != 0 {
		keep = diskMounts
	}
	kept, err := keep(s.config, users)
	if err != nil {
		return err
	}
	mounts = append(mounts, kept...)
	o := order{Config: s.config, Cgroups: s.cgroups, Proxy: s.proxy, UserNamespace: users != nil}
	for _, mount := range mounts {
		o.Mounts = append(o.Mounts, mount.Name())
	}
	return own.send(o, mounts...)
}

// prepareCgroup makes the node's cgroup, and returns the first id of the range that it has chosen for the node, 0 when
// the node has no user namespace.
func (s *supervisor) prepareCgroup() (hostID, error) {
	release, err := lockNetworkAndCgroups()
	if err != nil {
		return 0, err
	}
	defer release()
	machine, err := readMachineSize()
	if err != nil {
		return 0, err
	}
	var owner hostID
	if s.userNamespace {
		used, err := usedIDs(s.cgroups[0])
		if err != nil {
			return 0, err
		}
		if owner, err = chooseIDs(used); err != nil {
			return 0, err
		}
	}
	if err := makeCgroup(s.cgroups, s.names.cgroup, limitsOf(s.config.Resources, machine), owner); err != nil {
		return 0, fmt.Errorf("making the node's cgroup: %w", err)
	}
	return owner, nil
}

// placeInit puts the first process into the node's cgroup and its network namespace on the cluster's bridge.
func (s *supervisor) placeInit(pid int) error {
	release, err := lockNetworkAndCgroups()
	if err != nil {
		return err
	}
	defer release()
	if err := enterCgroup(s.cgroups, s.names.cgroup, pid); err != nil {
		return fmt.Errorf("entering the node's cgroup: %w", err)
	}
	return connectBridge(s.config.Network, s.names.link, pid)
}

// cleanUp removes the node's cgroup and link, and the cluster's bridge when no other node uses it. The home stays. The
// caller has ended the node's first process; processes that remain in the cgroup are killed.
func (s *supervisor) cleanUp() error {
	release, err := lockNetworkAndCgroups()
	if err != nil {
		return err
	}
	defer release()
	problems := []error{
		removeCgroup(s.cgroups, s.names.cgroup),
		disconnectBridge(s.config.Network, s.names.link),
	}
	s.status.Init, s.status.FirstID, s.status.Programs = 0, 0, map[string]node.Program{}
	return errors.Join(problems...)
}

// readMessages handles the messages of init until init ends: it forwards connections of init's listeners, stores the
// state of programs, and imports images once all programs run. The error is init's Failed, or an unusable message.
func (s *supervisor) readMessages(ctx context.Context, own *control) error {
	forwarders := newForwarders(s.log)
	defer forwarders.close()
	var loads sync.WaitGroup
	defer loads.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		var m message
		files, err := own.receive(&m)
		if err != nil {
			return nil // the socket is closed: init has ended
		}
		switch {
		case m.Failed != "":
			return errors.New(m.Failed)
		case len(m.Listeners) != len(files):
			closeFiles(files)
			return fmt.Errorf("the first process of the node sent %d listeners and %d descriptors", len(m.Listeners),
				len(files))
		case len(m.Listeners) > 0:
			for i, name := range m.Listeners {
				if err := forwarders.add(files[i], s.targetOf(name)); err != nil {
					closeFiles(files[i:])
					return err
				}
			}
		case m.Program != nil:
			p := m.Program.Program
			if p.PID != 0 {
				p.PID = s.pidOutside(p.PID)
			}
			if p.LastExit != "" && p.PID == 0 && ctx.Err() == nil {
				s.log.Warn("a program of the node has ended and is started again", "node", s.config.Name,
					"program", m.Program.Name, "end", p.LastExit)
			}
			s.status.Programs[m.Program.Name] = p
			err = s.writeStatus()
		case m.Up:
			err = errors.Join(node.RecordJoined(s.config.Home), s.setState(node.Up, ""))
			loads.Go(func() { s.preload(ctx) })
		}
		if err != nil {
			s.log.Error("the status of the node cannot be written", "node", s.config.Name, "error", err)
		}
	}
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// targetOf returns the address to which connections of a listener are forwarded.
func (s *supervisor) targetOf(listener string) target {
	switch api := s.config.APIServer; {
	case listener == listenMirror:
		return target{address: mirrorAddress(s.config.Images.Mirror)}
	case listener == listenAdvertised:
		return target{address: api.UnnamedAddress, plane: api.UnnamedPlane}
	default:
		return target{address: api.Address}
	}
}

// preload imports the image of DNS, where the node's programs have it, and the images of the config.
func (s *supervisor) preload(ctx context.Context) {
	files := slices.Clone(s.config.Images.Preload)
	dns := filepath.Join(filepath.Dir(s.config.Programs), "node", "dns-image.tar")
	if _, err := os.Stat(dns); err == nil { // programs of earlier versions have none
		files = append(files, dns)
	}
	for _, file := range files {
		if err := LoadImage(ctx, s.config.Home, s.config.Programs, file, os.Stderr); err != nil && ctx.Err() == nil {
			s.log.Error("an image cannot be loaded", "node", s.config.Name, "file", file, "error", err)
		}
	}
}

// pidOutside returns the process id on this machine of a child of init, 0 when it has ended.
func (s *supervisor) pidOutside(inside int) int {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.status.Init))
	for _, task := range tasks {
		children, err := os.ReadFile(task)
		if err != nil {
			continue
		}
		for child := range strings.FieldsSeq(string(children)) {
			status, err := os.ReadFile("/proc/" + child + "/status")
			if err != nil {
				continue
			}
			_, rest, _ := strings.Cut(string(status), "\nNSpid:")
			line, _, _ := strings.Cut(rest, "\n")
			ids := strings.Fields(line)
			if len(ids) > 0 && ids[len(ids)-1] == strconv.Itoa(inside) {
				pid, _ := strconv.Atoi(child)
				return pid
			}
		}
	}
	return 0
}

func (s *supervisor) setState(state node.State, text string) error {
	s.status.State, s.status.Message, s.status.Since = state, text, time.Now().UTC()
	return s.writeStatus()
}

func (s *supervisor) writeStatus() error {
	data, err := json.MarshalIndent(s.status, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(node.StatusFile(s.config.Home), append(data, '\n'), 0o644)
}
