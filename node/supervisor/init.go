package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// controlFD is the descriptor of init's end of the control socket.
const controlFD = 3

// Names of the listeners that init makes in the node.
const (
	listenAPIServer  = "api-server" // for programs of the node
	listenAdvertised = "advertised" // for pods
	listenMirror     = "mirror"
)

// pollEvery is the interval between two looks at a file that a program of the node makes.
const pollEvery = 20 * time.Millisecond

// programEndTimeout is how long init waits for its programs after SIGTERM. The kernel kills the others when init ends.
const programEndTimeout = 5 * time.Second

// RunInit is the first process of a node's process namespace. The supervisor starts it as `atoll node init`.
func RunInit() error {
	if os.Getpid() != 1 {
		return errors.New("atoll node init is started by atoll node run only")
	}
	own, err := newControl(os.NewFile(controlFD, "control"))
	if err != nil {
		return err
	}
	var o order
	mounts, err := own.receive(&o)
	if err == nil && len(mounts) != len(o.Mounts) {
		err = fmt.Errorf("it has %d mounts and %d descriptors", len(o.Mounts), len(mounts))
	}
	if err != nil {
		return fmt.Errorf("reading the order of the supervisor: %w", err)
	}
	i := &initProcess{order: o, mounts: mounts, control: own, launcher: newLauncher(), stop: make(chan struct{}),
		reports: make(chan report)}
	if err := i.run(); err != nil {
		return errors.Join(err, own.send(message{Failed: err.Error()}))
	}
	return nil
}

type initProcess struct {
	order
	mounts   []*os.File // of order.Mounts; enterAndConfigure closes them
	control  *control
	launcher *launcher

	stop     chan struct{} // closed when the programs have to end
	reports  chan report
	programs sync.WaitGroup
}

// run sets the node up, starts its programs, and restarts them until the supervisor sends Stop. When the supervisor
// ends without that, init exits at once.
func (i *initProcess) run() error {
	children := make(chan os.Signal, 16)
	signal.Notify(children, syscall.SIGCHLD)
	go i.launcher.reap(children)

	if err := i.launcher.onThread(i.enterAndConfigure); err != nil {
		return err
	}
	if err := i.listen(); err != nil {
		return err
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		var m message
		if _, err := i.control.receive(&m); err != nil {
			os.Exit(1) // the supervisor has ended; a new one can clean up only after this process has ended
		}
	}()
	go i.sendReports()
	go boundLogs(i.stop)

	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-stopped
		cancel()
		close(i.stop)
	}()
	if err := i.startPrograms(ctx); err != nil && ctx.Err() == nil {
		return err
	}
	<-stopped
	ended := make(chan struct{})
	go func() {
		i.programs.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(programEndTimeout):
	}
	return nil
}

// enterAndConfigure moves this process into the node and sets the node up: a cgroup namespace, the host name, addresses
// and routes, the root file system, and the files that the node's programs read.
func (i *initProcess) enterAndConfigure() error {
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("making a cgroup namespace: %w", err)
	}
	if err := unix.Sethostname([]byte(i.Config.Name)); err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	if err := configureNetwork(i.Config.Network, i.Config.APIServer.Advertised); err != nil {
		return fmt.Errorf("configuring the node's network: %w", err)
	}
	if err := enterRoot(i.order, i.mounts); err != nil {
		return err
	}
	closeFiles(i.mounts)
	if isUnified(i.Cgroups) {
		// A cgroup of version 2 with processes cannot have children with controllers.
		if err := os.Mkdir("/sys/fs/cgroup/agents", 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := writeFile("/sys/fs/cgroup/agents/cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
		if err := delegateControllers("/sys/fs/cgroup"); err != nil {
			return err
		}
	}
	if err := writeEtc(i.Config); err != nil {
		return err
	}
	size, err := readMachineSize()
	if err != nil {
		return err
	}
	files, err := programFiles(i.order, size)
	if err != nil {
		return err
	}
	for path, text := range files {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// readMachineSize returns the processors and memory of the machine, which kubelet reports as capacity.
func readMachineSize() (machineSize, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return machineSize{}, err
	}
	cpus, err := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*")
	if err != nil || len(cpus) == 0 {
		return machineSize{}, errors.New("/sys lists no processors")
	}
	processes, err := readMaxProcesses()
	if err != nil {
		return machineSize{}, err
	}
	return machineSize{milliCPU: int64(len(cpus)) * 1000, memory: int64(info.Totalram) * int64(info.Unit),
		processes: processes}, nil
}

// listen makes the listeners in the node and sends their descriptors to the supervisor, which accepts the connections
// in a process outside of the node.
func (i *initProcess) listen() error {
	addresses := map[string]string{listenAPIServer: fmt.Sprintf("127.0.0.1:%d", apiServerPort)}
	if i.Config.APIServer.Advertised != "" {
		addresses[listenAdvertised] = i.Config.APIServer.Advertised
	}
	if i.Config.Images.Mirror != "" {
		addresses[listenMirror] = fmt.Sprintf("127.0.0.1:%d", mirrorPort)
	}
	var names []string
	var files []*os.File
	for name, address := range addresses {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer f.Close()
		defer l.Close()
		names, files = append(names, name), append(files, f)
	}
	return i.control.send(message{Listeners: names}, files...)
}

// sendReports sends the reports of programs to the supervisor.
func (i *initProcess) sendReports() {
	for r := range i.reports {
		_ = i.control.send(message{Program: &r}) // fails only when the supervisor has ended
	}
}

// startPrograms starts containerd and, when it is usable, atoll-node. It sends Up when kubelet has a certificate.
func (i *initProcess) startPrograms(ctx context.Context) error {
	c := i.Config
	i.keepRunning("containerd", containerd, "--config", containerdConfig)
	if err := awaitSocket(ctx, containerdSocket); err != nil {
		return fmt.Errorf("waiting for containerd: %w", err)
	}
	if err := i.launcher.run("ctr", []string{containerd, "ctr", "--namespace", "k8s.io", "images", "import",
		programsDir + "/node/pause-image.tar"}); err != nil {
		return err
	}
	i.keepRunning("atoll-node", kubernetes, nodeArguments(c)...)
	if err := awaitFile(ctx, kubeletCertificate); err != nil {
		return fmt.Errorf("waiting for kubelet's certificate: %w", err)
	}
	return i.control.send(message{Up: true})
}

// keepRunning starts a goroutine that runs a program and restarts it until i.stop is closed.
func (i *initProcess) keepRunning(name, path string, args ...string) {
	i.programs.Go(func() { i.launcher.keepRunning(name, append([]string{path}, args...), i.stop, i.reports) })
}

// awaitSocket returns when a Unix socket accepts connections.
func awaitSocket(ctx context.Context, path string) error {
	return poll(ctx, func() bool {
		conn, err := net.Dial("unix", path)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	})
}

// awaitFile returns when a file exists.
func awaitFile(ctx context.Context, path string) error {
	return poll(ctx, func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// poll calls done every pollEvery until it returns true or ctx ends. Neither containerd nor kubelet notifies anybody
// when it has made its file.
func poll(ctx context.Context, done func() bool) error {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
